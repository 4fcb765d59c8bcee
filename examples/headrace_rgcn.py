"""RGCN on a graph with types; DATA is a folder of parts whose nodes of one type have labels."""

import argparse

import torch

import headrace
from headrace.training.loops import evaluate, train_epoch
from headrace.training.models import make_model

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--node-type", default="movie", help="nodes with labels and splits")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
graph = headrace.open_graph(args.data)
settings = {"num_neighbors": [10, 10], "batch_size": 128, "seed": args.seed}
seeds = args.node_type
train = headrace.NeighborLoader(graph, input_nodes=(seeds, "train"), shuffle=True, **settings)
test = headrace.NeighborLoader(graph, input_nodes=(seeds, "test"), **settings)

classes = graph[seeds].num_classes
model = make_model("rgcn", graph.num_features, 64, classes, edge_types=graph.edge_types)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
for epoch in range(1, args.epochs + 1):
    loss = train_epoch(model, train, optimizer, seeds).loss
    accuracy = evaluate(model, test, seeds).accuracy
    headrace.report(epoch=epoch, loss=loss, accuracy=accuracy)
