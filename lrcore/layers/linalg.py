"""Linear algebra of single matrices, computed in float64.

Second moments are positive semi-definite in exact arithmetic. Rounding, few tokens or dead neurons
leave eigenvalues at or below zero. Directions whose eigenvalue is below `EPS` times the largest are
projected out, as by a pseudo-inverse.

Devices without float64 (Apple's GPUs) run the model; moments are summed and matrices decomposed on
the CPU, which shares their memory.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..system.threads import threads_for

# Eigenvalues below EPS * max are rounding of a float64 eigh on moments accumulated from float32
# products: inverting such an eigenvalue puts noise of size 1 / sqrt(EPS) into the factors, and on
# models with fewer tokens than dimensions the perplexity explodes.
EPS = 1e-13
MIN_DAMPING = 1e-8  # of a least-squares refit, see `dampings`
MAX_SHRINKAGE = 0.9  # of correlations, with fewer tokens than their effective rank
ATTEMPTS = 12  # dampings tried, each ten times the previous damping
ROWS_AT_ONCE = 256  # rows processed at once when a matrix is inverted or reordered
SPANS = 8  # blocks of columns in a product with a triangular matrix
COLUMNS = 32  # of one block of `Lower`, which starts at the row of the first column
WITHOUT_FLOAT64 = {"mps"}  # device types


def float64_device(device: torch.device | str) -> torch.device:
    """Return the device that computes in float64 for tensors on `device`: the same device, or the
    CPU.
    """
    target = torch.device(device)
    return torch.device("cpu") if target.type in WITHOUT_FLOAT64 else target


def to_float64(x: Tensor) -> Tensor:
    """Return x in float64, on a device that supports it. [...] -> [...]."""
    return x.to(float64_device(x.device)).double()


def sum_float64(x: Tensor, dim: int | tuple[int, ...] | None = None) -> Tensor:
    """Return the float64 sum over `dim` (None: all dimensions). [...] -> remaining dimensions."""
    values = x.to(float64_device(x.device))
    total: Tensor = values.sum(dim, dtype=torch.float64)
    return total


@dataclass(frozen=True, eq=False)
class Lower:
    """A lower triangular matrix [n, n] without the zeros above the diagonal: half the memory.

    numbers: about n^2 / 2 numbers, by blocks of columns. size: n.
    """

    numbers: Tensor
    size: int

    @classmethod
    def of(cls, lower: Tensor) -> "Lower":
        """Pack a matrix [n, n]; entries above the diagonal are ignored."""
        size = lower.shape[0]
        starts = range(0, size, COLUMNS)
        count = sum(_block_shape(size, start).numel() for start in starts)
        packed = cls(lower.new_empty(count), size)
        for start, block in packed._blocks():
            block.copy_(lower[start:, start : start + COLUMNS])
        return packed

    def leading(self, count: int) -> Tensor:
        """Return the first rows and columns, [count, count]."""
        out = self.numbers.new_zeros(count, count)
        for start, block in self._blocks():
            if start >= count:
                break
            out[start:, start : start + COLUMNS] = block[: count - start, : count - start]
        return out.tril_()

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the first column of each block, and the numbers, [n - start, COLUMNS]."""
        offset = 0
        for start in range(0, self.size, COLUMNS):
            shape = _block_shape(self.size, start)
            yield start, self.numbers[offset : offset + shape.numel()].view(shape)
            offset += shape.numel()


def _block_shape(size: int, start: int) -> torch.Size:
    """Return the shape of the block of `Lower` that begins at column `start`."""
    return torch.Size((size - start, min(COLUMNS, size - start)))


def symmetric(m: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the symmetric part in float64, [..., n, n]; written into `out` if given."""
    m = m.double()
    out = torch.empty_like(m, memory_format=torch.contiguous_format) if out is None else out
    # copied first, as torch adds a transpose at a third of that speed; in place, to save gigabytes
    return out.copy_(m.mT).add_(m).div_(2)


def column_squares(m: Tensor) -> Tensor:
    """Return the squared norms of the columns in float64, [m, n] -> [n]; by blocks of rows, to save
    memory.
    """
    return torch.stack([(to_float64(rows) ** 2).sum(0) for rows in m.split(256)]).sum(0)


def eigh_descending(m: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (clamped at 0) and eigenvectors of a PSD matrix, largest first.

    [..., n, n] -> [..., n], [..., n, n].
    """
    with threads_for(m):
        values, vectors = torch.linalg.eigh(symmetric(m))
    return values.flip(-1).clamp_min(0), vectors.flip(-1)


def eigenvalues_descending(m: Tensor) -> Tensor:
    """Return only the eigenvalues of `eigh_descending`. [..., n, n] -> [..., n]."""
    with threads_for(m):
        values: Tensor = torch.linalg.eigvalsh(symmetric(m))
    return values.flip(-1).clamp_min(0)


def roots(m: Tensor) -> tuple[Tensor, Tensor]:
    """Return `m^{1/2}` and the pseudo-inverse `m^{-1/2}` of a PSD m. [..., n, n] -> two of [..., n,
    n].

    Their product is the projector on the directions with eigenvalues above EPS * max: the identity
    if m is regular.
    """
    values, vectors = eigh_descending(m)
    root = torch.where(_are_nonzero(values), values, 0).sqrt()
    return (vectors * root.unsqueeze(-2)) @ vectors.mT, _inverse_root(values, vectors)


def inverse_root(m: Tensor) -> Tensor:
    """Return the pseudo-inverse `m^{-1/2}` of a PSD m [..., n, n], as `roots` does."""
    return _inverse_root(*eigh_descending(m))


def _inverse_root(values: Tensor, vectors: Tensor) -> Tensor:
    reciprocal = values.clamp_min(torch.finfo(torch.float64).tiny).rsqrt()
    inverse = torch.where(_are_nonzero(values), reciprocal, 0)
    return (vectors * inverse.unsqueeze(-2)) @ vectors.mT


def _are_nonzero(values: Tensor) -> Tensor:
    """Return which descending eigenvalues [..., n] are above EPS * max."""
    return values > EPS * values[..., :1]


def state_gram(weight: Tensor, bias: Tensor | None, second: Tensor, mean: Tensor) -> Tensor:
    """Return `E[y y^T]` of `y = W x + b` per head, from the moments of x.

    weight [heads, size, d]; bias [heads, size] or None; second = E[x x^T] [d, d]; mean = E[x] [d].
    Returns [heads, size, size].
    """
    weight = weight.double()
    gram = weight @ second.double() @ weight.mT
    if bias is not None:
        bias = bias.double()
        cross = (weight @ mean.double()).unsqueeze(-1) * bias.unsqueeze(-2)  # [heads, size, size]
        gram = gram + cross + cross.mT + bias.unsqueeze(-1) * bias.unsqueeze(-2)
    return symmetric(gram)


def whitened_svd(weight: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the activation-aware SVD up, values, down; `up[:, :r] @ down[:r]` is optimal at any
    rank r.

    weight [out, in]; second S = E[x x^T] [in, in], None for the identity. Returns up [out, k],
    values [k] descending and down [k, in] with k = min(out, in). Rank r minimizes `E |W x - W^_r
    x|^2`. The optimum is the projection `U_r U_r^T W` on the top eigenvectors of `W S W^T`, so S is
    never inverted and may be singular. The error equals that of whitening by any root of S, such as
    Cholesky (SVD-LLM): the values are the singular values of `W S^{1/2}`.
    """
    weight = weight.double()
    if second is None:
        return _svd(weight)
    second = second.double()
    if weight.shape[0] <= weight.shape[1]:
        values, vectors = eigh_descending(weight @ second @ weight.mT)
        return vectors, values.sqrt(), vectors.mT @ weight
    # W = basis @ R with an orthonormal basis: the Gram matrix of the smaller side suffices
    basis, triangle = _orthonormal(weight)
    values, vectors = eigh_descending(triangle @ second @ triangle.mT)
    return basis(vectors), values.sqrt(), vectors.mT @ triangle


def two_sided_svd(weight: Tensor, outputs: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the SVD in a metric of outputs and inputs; `up[:, :r] @ down[:r]` is optimal at any
    rank r.

    weight [out, in]; outputs R [out, out], regular; second S = E[x x^T] [in, in]. Returns up
    [out, k], values [k] descending and down [k, in] with k = min(out, in). Rank r minimizes
    `tr((W - W^)^T R (W - W^) S)`, the sum of the remaining squared values. With `R = L L^T` the
    optimum is L^{-T} times that of L^T W in the metric S; S is not inverted.
    """
    lower = cholesky(outputs, EPS)
    up, values, down = whitened_svd(lower.mT @ weight.double(), second)
    return torch.linalg.solve_triangular(lower.mT, up, upper=True), values, down


def _orthonormal(tall: Tensor) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Factor W [m, n], m > n, as `basis @ R`. Return a function that multiplies basis by [n, k],
    and R [n, n].

    Cholesky (`basis = W R^{-1}`) takes less time than QR. It is used if the condition number of R
    guarantees that the columns of the basis are orthonormal to 1e-7.
    """
    triangle, info = torch.linalg.cholesky_ex(tall.mT @ tall, upper=True)
    identity = torch.eye(len(triangle), dtype=triangle.dtype, device=triangle.device)
    inverse = torch.linalg.solve_triangular(triangle, identity, upper=True)
    if bool((info == 0) & (triangle.norm() * inverse.norm() < CONDITION)):  # False for NaN
        return (lambda x: tall @ (inverse @ x)), triangle
    with threads_for(tall):
        basis, triangle = torch.linalg.qr(tall)
    return (lambda x: basis @ x), triangle


def _svd(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `whitened_svd` of a float64 weight without a second moment.

    The Gram matrix of the smaller side takes less than half the time; it is used if it resolves the
    smallest singular value.
    """
    tall = weight.shape[0] > weight.shape[1]
    squares, vectors = eigh_descending(weight.mT @ weight if tall else weight @ weight.mT)
    if bool(squares[-1] <= GRAM_IS_ENOUGH * squares[0]):
        with threads_for(weight):
            left_vectors, values, right_vectors = torch.linalg.svd(weight, full_matrices=False)
        return left_vectors, values, values.unsqueeze(-1) * right_vectors
    values = squares.sqrt()
    if tall:
        return weight @ (vectors / values), values, (vectors * values).mT
    return vectors, values, vectors.mT @ weight


# If the smallest eigenvalue of a Gram matrix is above this share of the largest, the roots of the
# eigenvalues are the singular values to a relative error of 1e-6.
GRAM_IS_ENOUGH = 1e-10
# Below this condition number of R, `W R^{-1}` is orthonormal to 1e-7: the error is its square times
# the rounding error.
CONDITION = 3e4


def singular_values(weight: Tensor, second: Tensor | None = None) -> Tensor:
    """Return only the values of `whitened_svd`, [k] descending, float64, in a third of the time.

    Without `second`, small values are computed from the matrix if the Gram matrix would lose them.
    With `second`, values are accurate to 1e-8 of the largest.
    """
    weight = weight.double()
    tall = weight if weight.shape[0] > weight.shape[1] else weight.mT
    if second is None:
        squares = eigenvalues_descending(tall.mT @ tall)
        if bool(squares[-1] > GRAM_IS_ENOUGH * squares[0]):
            return squares.sqrt()
        with threads_for(tall):
            values: Tensor = torch.linalg.svdvals(torch.linalg.qr(tall, mode="r")[1])
        return values
    if tall is weight:
        weight = triangular_factor(weight)
    return eigenvalues_descending(weight @ second.double() @ weight.mT).sqrt()


def triangular_factor(tall: Tensor) -> Tensor:
    """Return R [n, n] with `R^T R = W^T W` for a tall W [m, n] float64.

    Computed by Cholesky, which is much faster, or by QR if the products are singular.
    """
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(tall.mT @ tall, upper=True)
    if int(info) != 0:
        with threads_for(tall):
            factor = torch.linalg.qr(tall, mode="r")[1]
    return factor


def pseudo_inverse(m: Tensor, relative_cutoff: float | None = None) -> Tensor:
    """Return the pseudo-inverse of m [..., m, n] in float64, [..., n, m].

    relative_cutoff: singular values below this share of the largest count as zero; None: those
    below the rounding error.
    """
    with threads_for(m):
        inverse: Tensor = torch.linalg.pinv(m.double(), rtol=relative_cutoff)
    return inverse


def balanced(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Balance the norms of `up[:, j]` and `down[j]`, so that half precision holds both.

    up [out, r], down [r, in]; returns the same shapes.
    """
    up_norms, down_norms = up.norm(dim=0), down.norm(dim=1)
    scale = torch.where(
        (up_norms > 0) & (down_norms > 0),
        (down_norms / up_norms.clamp_min(1e-300)).sqrt(),
        torch.ones_like(up_norms),
    )
    return up * scale, down / scale.unsqueeze(-1)


def damped(m: Tensor, strength: float, weight: float = 1.0) -> Tensor:
    """Return `weight * m + strength * mean(diag m) * I` in float64, [n, n]; the identity if m is
    zero.
    """
    m = symmetric(m)
    level = m.diagonal().mean()  # stays a tensor: reading it would wait for a GPU
    m.mul_(weight)
    m.diagonal().add_(torch.where(level > 0, strength * level, 1.0))
    return m


def dampings(m: Tensor, strength: float, attempt: int = 0) -> Tensor:
    """Return the damping of the diagonal of a second moment m [n, n], [n] float64.

    Each entry is damped by `strength` times itself, plus the part of the mean that float64 does not
    resolve; ones if m is zero. Damping by the mean would drown all channels next to a massive
    activation, whose square is 1e8 times larger. attempt: number of dampings that were too small;
    the second part starts far below the first, so it grows faster.
    """
    diagonal = m.diagonal().double().clamp_min(0)
    level = diagonal.mean()
    resolution = min(EPS, 1e-5 * strength)
    damping = 10**attempt * strength * diagonal + 100**attempt * resolution * level
    return torch.where(level > 0, damping, 1.0)


def sampling_damping(m: Tensor, tokens: int) -> float:
    """Return the damping that makes up for the few tokens of a second moment m [n, n], as the
    `strength` of `cholesky`; at least MIN_DAMPING.

    A least-squares refit on m has its largest error where the tokens are about as many as the
    inputs. So the correlations R of m are shrunk to `(1 - rho) R + rho I`. rho is the oracle
    approximating shrinkage of Chen, Wiesel, Eldar and Hero 2010, eq. 23, whose expected squared
    error is the least for Gaussian tokens; it falls as 1 / tokens. Inputs that are always zero are
    left out.
    """
    diagonal = m.diagonal().double()
    scale = torch.where(diagonal > 0, diagonal.clamp_min(0).rsqrt(), 0.0)
    squares = diagonal.new_zeros(())
    for rows, row_scale in zip(m.split(ROWS_AT_ONCE), scale.split(ROWS_AT_ONCE), strict=True):
        squares += (rows.double() * scale * row_scale.unsqueeze(1)).square().sum()
    size, total = float((scale > 0).sum()), float(squares)
    if size < 2:
        return MIN_DAMPING
    error = (1 - 2 / size) * total + size**2
    distance = (tokens + 1 - 2 / size) * max(total - size, 0.0)  # from the identity
    shrinkage = min(MAX_SHRINKAGE, error / distance) if distance else MAX_SHRINKAGE
    return max(MIN_DAMPING, shrinkage / (1 - shrinkage))


def cholesky(m: Tensor, strength: float = MIN_DAMPING, out: Tensor | None = None) -> Tensor:
    """Return the lower Cholesky factor of m [n, n] with `dampings` added to the diagonal.

    The dampings are increased until the factor exists. out [n, n] float64: memory for the factor.
    Raises torch.linalg.LinAlgError if m is far from positive semi-definite, or not finite.
    """
    return _damped_factor(lambda: symmetric(m, out), strength)


def reordered_cholesky(m: Tensor, order: Tensor, strength: float) -> Tensor:
    """Return `cholesky` of the rows and columns of a symmetric m [n, n] in an order [k], [k, k].

    Raises torch.linalg.LinAlgError like `cholesky`.
    """
    return _damped_factor(lambda: _reordered(m, order), strength)


def _reordered(m: Tensor, order: Tensor) -> Tensor:
    """Return rows and columns of m [n, n] in an order [k], float64, [k, k].

    Rows are selected in blocks, then their columns: half the time of indexing both at once, and no
    additional copy.
    """
    result = m.new_empty(len(order), len(order), dtype=torch.float64)
    for indices, rows in zip(order.split(ROWS_AT_ONCE), result.split(ROWS_AT_ONCE), strict=True):
        torch.gather(
            m.index_select(0, indices).double(), 1, order.expand(len(indices), -1), out=rows
        )
    return result


def _damped_factor(make_matrix: Callable[[], Tensor], strength: float) -> Tensor:
    """Factorize the damped result of `make_matrix` in place, since it may take gigabytes."""
    for attempt in range(ATTEMPTS):
        m = make_matrix()
        m.diagonal().add_(dampings(m, strength, attempt))
        if cholesky_(m):
            return m
    raise _not_positive()


def _not_positive() -> Exception:
    """Return a new error each time: a stored error would hold the frames that raised it, and their
    matrices.
    """
    # PyTorch documents the class, but its stubs do not export it.
    error: Exception = torch.linalg.LinAlgError(  # type: ignore[attr-defined]
        "matrix is far from positive semi-definite or not finite"
    )
    return error


def cholesky_(m: Tensor) -> bool:
    """Replace a symmetric contiguous matrix [n, n] by the lower factor. Return False if there is
    none.

    If it fails, the contents of the matrix are lost.
    """
    # LAPACK is column-major: the upper factor of the transpose is the lower factor of the rows
    transposed, failed = m.mT, torch.zeros((), dtype=torch.int32, device=m.device)
    torch.linalg.cholesky_ex(transposed, upper=True, out=(transposed, failed))
    return not int(failed)


def invert_lower_(lower: Tensor) -> Tensor:
    """Invert a lower triangular matrix [n, n] in place, by blocks of rows.

    The matrix products run at several times the rate of LAPACK's inverse of a Cholesky factor.
    """
    for start in range(0, len(lower), ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(lower))
        diagonal_block = lower[start:end, start:end]
        eye = torch.eye(end - start, dtype=lower.dtype, device=lower.device)
        diagonal_block.copy_(torch.linalg.solve_triangular(diagonal_block, eye, upper=False))
        if start:
            product = times_lower(lower[start:end, :start], lower[:start, :start])
            torch.mm(diagonal_block.neg(), product, out=lower[start:end, :start])
    return lower


def inverse_of(lower: Tensor) -> Tensor:
    """Return the inverse of C = L L^T, [n, n]. The lower factor L [n, n] is overwritten."""
    root = invert_lower_(lower)
    return root.mT @ root


def times_lower(m: Tensor, lower: Tensor) -> Tensor:
    """Return `m @ lower` for m [d, n] and a lower triangular matrix [n, n].

    Blocks of columns skip the zeros above the diagonal: about half of the multiply-adds.
    """
    count = len(lower)
    width = max(1, math.ceil(count / SPANS))
    return torch.cat([m[:, i:] @ lower[i:, i : i + width] for i in range(0, count, width)], dim=-1)


def leading_refit(lower: Lower, product: Tensor, count: int) -> Tensor:
    """Return the least-squares refit of a matrix on the first `count` inputs, [d, count].

    With C = L L^T the second moment of the inputs: `(W L)[:, :m] L[:m, :m]^{-1}`, so one Cholesky
    factor serves any count. lower: L [n, n]; product: W L [d, n].
    """
    refit: Tensor = torch.linalg.solve_triangular(
        lower.leading(count), product[:, :count], upper=False, left=False
    )
    return refit


def leverage_complement(gram: Tensor, ridge: float) -> Tensor:
    """Return `ridge * [(C + ridge I)^{-1}]_jj`: one minus the ridge leverage, without cancellation.
    [n, n] -> [n].

    A ridge below the rounding error of C, as with massive activations, is increased until an
    inverse exists. Raises torch.linalg.LinAlgError like `cholesky`.
    """
    smallest_ridge = max(ridge, EPS * float(gram.diagonal().mean()))
    for attempted_ridge in (ridge, *(smallest_ridge * 10**attempt for attempt in range(ATTEMPTS))):
        m = symmetric(gram)
        m.diagonal().add_(attempted_ridge)
        if cholesky_(m):
            complement: Tensor = attempted_ridge * column_squares(invert_lower_(m))
            return complement
    raise _not_positive()


def conjugate_gradients(
    operator: Callable[[Tensor], Tensor],
    target: Tensor,
    precondition: Callable[[Tensor], Tensor],
    steps: int,
    tolerance: float,
) -> Tensor:
    """Solve `operator(X) = target` [...] by preconditioned conjugate gradients from X = 0.

    operator: symmetric positive semi-definite on tensors of the shape of target; precondition:
    symmetric positive definite. Each step lowers `<X, operator(X)> / 2 - <X, target>`, so X is
    usable after any of them. Stops after `steps`, or once the squared residual in the metric of
    `precondition` is at most tolerance times the first.
    """
    solution, residual = torch.zeros_like(target), target
    preconditioned = direction = precondition(residual)
    squared_norm = first_norm = float((residual * preconditioned).sum())
    for _ in range(steps):
        if not squared_norm > tolerance * first_norm:
            break
        image = operator(direction)
        curvature = float((direction * image).sum())
        if curvature <= 0:
            break
        solution = solution + squared_norm / curvature * direction
        residual = residual - squared_norm / curvature * image
        preconditioned = precondition(residual)
        squared_norm, previous_norm = float((residual * preconditioned).sum()), squared_norm
        direction = preconditioned + squared_norm / previous_norm * direction
    return solution
