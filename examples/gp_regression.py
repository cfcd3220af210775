"""Gaussian process regression with GPyTorch, without storing the kernel matrix.

Data like kin40k: a smooth function of the 8 joint angles of a robot arm, with noise.
Usage: python gp_regression.py [--n 1000] [--steps 10]. With --n 40000 the kernel matrix would take
12.8 GB in double precision; it is never stored, and a training step takes minutes on two cores.
"""

import argparse
import time

import gpytorch
import numpy as np
import torch

from approxkmv.exact import gaussian_kernel
from approxkmv.gpytorch import RBFKernel

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=1000, help="points to learn from")
parser.add_argument("--steps", type=int, default=10, help="steps of the optimiser")
args, _ = parser.parse_known_args()


def arm(angles):
    """Distance of the hand of an arm of four links from a fixed point; angles turn and bend."""
    bend = torch.cumsum(angles[:, :4], dim=1)
    turn = torch.cumsum(angles[:, 4:], dim=1)
    along = torch.stack([bend.cos() * turn.cos(), bend.cos() * turn.sin(), bend.sin()])
    hand = along.sum(dim=2) - torch.tensor([[1.0], [1.0], [1.0]])
    return hand.norm(dim=0)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
angles = torch.pi / 2 * torch.rand(args.n + 500, 8)
clean = arm(angles)
clean = (clean - clean.mean()) / clean.std()
noisy = clean + 0.1 * torch.randn_like(clean)
x, y, x_test, y_test = angles[:-500], noisy[:-500], angles[-500:], clean[-500:]

likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Model(x, y, likelihood)
model.covariance.base_kernel.lengthscale = 1.0
optimiser = torch.optim.Adam(model.parameters(), lr=0.15)
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
# Conjugate gradients at every size, as for large n; the default tolerance of 1 is for training.
with gpytorch.settings.max_cholesky_size(0):
    for step in range(args.steps):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimiser.step()
        print(f"step {step + 1}: loss {loss.item():.4f}, {time.perf_counter() - start:.2f} s")
    model.eval()
    likelihood.eval()
    with (
        torch.no_grad(),
        gpytorch.settings.eval_cg_tolerance(1e-4),
        gpytorch.settings.max_cg_iterations(1000),
        gpytorch.settings.skip_posterior_variances(),
    ):
        mean = model(x_test).mean

error = (mean - y_test).square().mean().sqrt().item()
bandwidth = model.covariance.base_kernel.lengthscale.item()
scale, noise = model.covariance.outputscale.item(), likelihood.noise.item()
print(f"bandwidth {bandwidth:.3f}, scale {scale:.3f}, noise {noise:.4f}")
print(f"error {error:.3f} on 500 new points, where predicting 0 has {y_test.std().item():.3f}")

# The same prediction from the definition: a dense solve, for a size at which that is possible.
if args.n <= 2000:
    dense = scale * gaussian_kernel(x, x, bandwidth) + noise * np.eye(len(x))
    constant = model.mean.constant.item()
    weights = np.linalg.solve(dense, y.numpy() - constant)
    exact = constant + scale * gaussian_kernel(x_test, x, bandwidth) @ weights
    np.testing.assert_allclose(mean.numpy(), exact, atol=1e-3)
assert error < 0.5
