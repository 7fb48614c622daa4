"""What one token is multiplied by: of its matrices, and of the keys and values that are cached."""

from torch import Tensor

from .forms import Matrix, Sparse, count
from .layer import Attention, Linear, Projection, Stored


def raised_keys(a: Attention) -> int:
    """Multiply-adds that raise the keys of one cached token from their latent; 0 without one. Of
    multi-head latent attention in a family that has it, those of its values too.
    """
    if a.factors is not None:
        raised = a.factors.get("kv_b")
        return 0 if raised is None else sum(multiplied(part) for part in parts(raised))
    latent = a.cached_latent("k")
    return 0 if latent is None else count(latent.up)


def weighted_values(a: Attention) -> int:
    """Multiply-adds that weight the values of one cached token for every query head, those of
    raising them included; or that weight their latent, which is raised once it is summed.
    """
    latent = a.cached_latent("v")
    if latent is None:
        return a.n_q * a.v_size
    plain = isinstance(latent.up, Tensor)
    return a.n_q * latent.rank if plain else a.n_q * a.v_size + count(latent.up)


def absorbed(a: Attention) -> int:
    """Multiply-adds of one token beyond one with each number of the values' up-projection: where
    plain latents of values are cached, every query head raises the sum that it has weighted.
    """
    latent = a.cached_latent("v")
    if latent is None or not isinstance(latent.up, Tensor):
        return 0
    return a.n_q * a.v_size * latent.rank - latent.up.numel()


def parts(projection: Projection) -> list[Matrix]:
    """The matrices whose product, or sum, with the input is the projection: no bias."""
    if isinstance(projection, Linear):
        return [projection.weight]
    if isinstance(projection, Stored):
        return [projection.form]
    pair = [projection.down, projection.up]
    return pair if projection.sparse is None else [*pair, projection.sparse]


def multiplied(matrix: Matrix) -> int:
    """Numbers of a matrix that multiply its input: not the places of sparse entries."""
    return matrix.values.numel() if isinstance(matrix, Sparse) else count(matrix)
