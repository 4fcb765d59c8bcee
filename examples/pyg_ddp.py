"""GraphSAGE on Pubmed with torch's DDP, as for torchrun; only the loader is headrace's."""

import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from headrace import NeighborLoader

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
train_idx = torch.load(sys.argv[2])
train_idx = train_idx.split(train_idx.size(0) // world_size)[rank]
loader = NeighborLoader(
    sys.argv[1], num_neighbors=[10, 10], input_nodes=train_idx, batch_size=16, shuffle=True
)

model = GraphSAGE(in_channels=500, hidden_channels=64, num_layers=2, out_channels=3, dropout=0.5)
model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

for epoch in range(1, int(sys.argv[3]) + 1):
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}  loss {loss.item():.4f}", flush=True)

dist.destroy_process_group()
