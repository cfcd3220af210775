"""
Gaussian process regression
===========================

GPyTorch, without storing the kernel matrix.

Data like kin40k: a smooth function of the 8 joint angles of a robot arm, with noise. Bandwidth,
scale and noise are learnt on some of the points (``--subset``), and predictions are from all of
them. ``python gp_regression.py --n 40000``: the kernel matrix would take 6.4 GB in single
precision; it is never stored.
"""

import argparse
import time

import gpytorch
import matplotlib.pyplot as plt
import numpy as np
import torch

from approxkmv import matvec
from approxkmv.exact import gaussian_kernel
from approxkmv.gpytorch import GaussianKernelLinearOperator, RBFKernel

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=1000, help="points to predict from")
parser.add_argument("--subset", type=int, default=1000, help="points for bandwidth, scale, noise")
parser.add_argument("--steps", type=int, default=10, help="steps of the optimiser")
parser.add_argument("--rank", type=int, default=100, help="columns of GPyTorch's preconditioner")
args, _ = parser.parse_known_args()
N_TEST, N_DENSE = 500, 2000


def arm(angles):
    """Distance of the hand of an arm of four links from a fixed point; angles turn and bend."""
    bend = torch.cumsum(angles[:, :4], dim=1)
    turn = torch.cumsum(angles[:, 4:], dim=1)
    along = torch.stack([bend.cos() * turn.cos(), bend.cos() * turn.sin(), bend.sin()])
    hand = along.sum(dim=2) - torch.tensor([[1.0], [1.0], [1.0]])
    return hand.norm(dim=0)


class CountedMatrix(GaussianKernelLinearOperator):
    """The kernel matrix, which says now and then how many products with large ones were made."""

    n_products, start = 0, time.perf_counter()

    def _matmul(self, rhs):
        y = super()._matmul(rhs)
        if self.shape[-1] > 10_000:
            CountedMatrix.n_products += 1
            if self.n_products % 20 == 0:
                spent = time.perf_counter() - self.start
                print(f"  {self.n_products} products, {spent:.0f} s", flush=True)
        return y


class CountedKernel(RBFKernel):
    def forward(self, x1, x2, diag=False, **params):
        K = super().forward(x1, x2, diag=diag, **params)
        return K if diag else CountedMatrix(K.x1, K.x2, K.bandwidth)


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.covariance = gpytorch.kernels.ScaleKernel(CountedKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))


torch.manual_seed(0)
# Large kernel matrices in single precision: a product takes less than half of the time.
torch.set_default_dtype(torch.float64 if args.n <= N_DENSE else torch.float32)
angles = torch.pi / 2 * torch.rand(args.n + N_TEST, 8)
clean = arm(angles)
clean = (clean - clean.mean()) / clean.std()
noisy = clean + 0.1 * torch.randn_like(clean)
x, y, x_test, y_test = angles[:-N_TEST], noisy[:-N_TEST], angles[-N_TEST:], clean[-N_TEST:]

likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = Model(x[: args.subset], y[: args.subset], likelihood)
model.covariance.base_kernel.lengthscale = 1.0
optimiser = torch.optim.Adam(model.parameters(), lr=0.15)
objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
# Conjugate gradients at every size, as for large n; the default tolerance of 1 is for training.
with gpytorch.settings.max_cholesky_size(0):
    for step in range(args.steps):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = -objective(model(x[: args.subset]), y[: args.subset])
        loss.backward()
        optimiser.step()
        print(f"step {step + 1}: loss {loss.item():.4f}, {time.perf_counter() - start:.2f} s")
    model.eval()
    likelihood.eval()
    model.set_train_data(x, y, strict=False)
    CountedMatrix.start = start = time.perf_counter()
    with (
        torch.no_grad(),
        gpytorch.settings.eval_cg_tolerance(1e-4 if args.n <= N_DENSE else 1e-2),
        gpytorch.settings.max_cg_iterations(1000),
        gpytorch.settings.max_preconditioner_size(args.rank),
        gpytorch.settings.skip_posterior_variances(),
    ):
        mean = model(x_test).mean
    print(f"predicted from {args.n} points, {time.perf_counter() - start:.1f} s")

error = (mean - y_test).square().mean().sqrt().item()
bandwidth = model.covariance.base_kernel.lengthscale.item()
scale, noise = model.covariance.outputscale.item(), likelihood.noise.item()
print(f"bandwidth {bandwidth:.3f}, scale {scale:.3f}, noise {noise:.4f}")
print(f"error {error:.4f} on {N_TEST} new points, where predicting 0 has {y_test.std().item():.3f}")

# What is left of the system that GPyTorch has solved, from an exact product of ours.
constant = model.mean.constant.item()
weights = model.prediction_strategy.mean_cache.numpy().astype(np.float64)
right = y.numpy().astype(np.float64) - constant
points = x.numpy().astype(np.float64)
image = scale * matvec(points, points, weights, bandwidth=bandwidth, method="exact")
residual = np.linalg.norm(right - image - noise * weights) / np.linalg.norm(right)
print(f"residual {residual:.1e} of the right side")

# The same prediction from the definition: a dense solve with as many points as that can take.
few = slice(0, min(args.n, N_DENSE))
dense = scale * gaussian_kernel(x[few], x[few], bandwidth)
weights = np.linalg.solve(dense + noise * np.eye(len(dense)), right[few])
exact = constant + scale * gaussian_kernel(x_test, x[few], bandwidth) @ weights
exact_error = np.sqrt(np.mean((exact - y_test.numpy()) ** 2))
print(f"error {exact_error:.4f} of the exact process of {len(dense)} of the points")
if args.n <= N_DENSE:
    np.testing.assert_allclose(mean.numpy(), exact, atol=1e-3)
fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
ax.plot(y_test.numpy(), mean.numpy(), ".", ms=3)
ax.axline((0, 0), slope=1, color="0.6", ls="--")
ax.set(xlabel="truth", ylabel="predicted", title=f"{args.n} points, error {error:.3f}")
plt.show()
assert error < min(0.5, exact_error + 1e-3)
