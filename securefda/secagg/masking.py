"""Double masking of Bonawitz et al. 2017, Fig. 4: hide an input under all masks, and take off those of a sum.

Party i adds its self mask and, for each peer j, the pairwise mask s_ij, with + for j < i and - for j > i. In the sum
over all parties the pairwise masks cancel; what is left of a dropped peer's is removed by :func:`unmask`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from securefda.secagg.prg import Mask, RingVector, add_masks, check_ring_vector, useful_threads
from securefda.secagg.secret import Secret


def mask(
    vector: RingVector, *, own: int, self_seed: Secret, pair_seeds: Mapping[int, Secret], threads: int = 1
) -> None:
    """Turn an encoded input into a masked input, in place, so that no clear copy stays behind.

    To anyone who lacks the self seed, or at least one pair seed, the result is uniform over the ring as far as
    AES-256 is a pseudorandom permutation.

    Args:
        vector: encoded input, shape ``(length,)``.
        own: roster index of the party.
        self_seed: key of the self mask, 32 bytes.
        pair_seeds: key s_ij of each peer j, 32 bytes; at least one.
        threads: how many may share the work; as many do as :func:`securefda.secagg.prg.useful_threads` says.

    Raises:
        ValueError: no peer, ``own`` among the peers, or a vector or key of another form. Nothing is changed then.
    """
    if not pair_seeds or own in pair_seeds:
        raise ValueError("pairwise masks are with at least one peer, and never with oneself")
    masks = [Mask(self_seed), *(Mask(seed, _sign(own, peer)) for peer, seed in pair_seeds.items())]
    _add(vector, masks, threads)


def accumulate(total: RingVector, masked: RingVector) -> None:
    """Add a masked input to the running sum modulo 2^b, in place.

    Raises:
        ValueError: the two differ in shape or ring. The sum is unchanged then.
    """
    check_ring_vector(total)
    if masked.shape != total.shape or masked.dtype != total.dtype:
        raise ValueError(f"{masked.shape} of {masked.dtype} does not add to {total.shape} of {total.dtype}")
    np.add(total, masked, out=total)


def unmask(
    total: RingVector,
    *,
    self_seeds: Mapping[int, Secret],
    dropped: Mapping[int, Mapping[int, Secret]],
    threads: int = 1,
) -> None:
    """Take the remaining masks off a sum of masked inputs, in place; the sum of the encoded inputs stays.

    Args:
        total: sum of the survivors' masked inputs, shape ``(length,)``.
        self_seeds: self mask key of every survivor, by roster index.
        dropped: for every party that the survivors masked with but that is not in the sum, its pair seed with
            every survivor.
        threads: how many may share the work; as many do as :func:`securefda.secagg.prg.useful_threads` says.

    Raises:
        ValueError: no survivor, a party both survived and dropped, or a dropped party's seeds are not exactly those
            with the survivors. Nothing is changed then.
    """
    survivors = set(self_seeds)
    if not survivors or survivors & set(dropped):
        raise ValueError("a sum has survivors, and none of them is dropped")
    masks = [Mask(seed, -1) for seed in self_seeds.values()]
    for peer, seeds in dropped.items():
        if set(seeds) != survivors:
            raise ValueError(f"the pair seeds of dropped party {peer} are not those with the survivors")
        masks += [Mask(seed, _sign(peer, survivor)) for survivor, seed in seeds.items()]
    _add(total, masks, threads)


def _add(vector: RingVector, masks: Sequence[Mask], threads: int) -> None:
    add_masks(vector, masks, threads=useful_threads(len(masks) * vector.nbytes, threads))


def _sign(own: int, peer: int) -> Literal[1, -1]:
    """Sign with which ``own`` adds the mask it shares with ``peer``; the peer's is the opposite one.

    A dropped party's own sign is therefore what cancels the mask that a survivor added.
    """
    return 1 if peer < own else -1
