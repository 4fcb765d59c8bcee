"""Predict links of a relation of WN18RR with RGCN; DATA is a folder of parts of its triples.

Entities have no features: each has a row that is learnt.
"""

import argparse

import torch

import headrace
from headrace.training.loops import evaluate_links, train_links_epoch
from headrace.training.models import make_model

RELATION = ("entity", "_derivationally_related_form", "entity")

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
graph = headrace.open_graph(args.data)
settings = {
    "num_neighbors": [10, 10],
    "batch_size": 1024,
    "neg_sampling": "binary",
    "seed": args.seed,
}
train = headrace.LinkNeighborLoader(graph, edge_label_index=RELATION, shuffle=True, **settings)
test = headrace.LinkNeighborLoader(graph, edge_label_index=(RELATION, "test"), **settings)

num_nodes = {node.name: node.num_nodes for node in graph.manifest.nodes}
model = make_model("rgcn", {}, 64, 64, 2, 0.2, graph.edge_types, num_nodes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, args.epochs + 1):
    loss = train_links_epoch(model, train, optimizer, RELATION).loss
    headrace.report(epoch=epoch, loss=loss, auc=evaluate_links(model, test, RELATION))
