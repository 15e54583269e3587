"""TorchTPU's tests; they mirror the source tree."""
