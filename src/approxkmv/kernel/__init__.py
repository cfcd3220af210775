"""The kernel matrix: points, bandwidth, frame; its definition and its exact product."""
