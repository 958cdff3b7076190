"""The output layer and the distillation loss in one pass over a few hundred positions at a time.

Logits [positions, vocab] in fp32 and what autograd keeps of them are the largest tensors of the whole training step.
Here they exist for one chunk of positions only, and the gradient, formed beside the loss, is kept in half precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

_CHUNK = 128  # positions at a time


class _DistillationLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, ids: Tensor, probs: Tensor, weights: Tensor) -> Tensor:
        table = head.to(hidden.dtype)
        d_logits = hidden.new_empty(len(hidden), len(head))
        loss = hidden.new_zeros((), dtype=torch.float32)
        for at in range(0, len(hidden), _CHUNK):
            part = slice(at, at + _CHUNK)
            value, d_logits[part] = _chunk(hidden[part] @ table.T, ids[part], probs[part], weights[part])
            loss += value
        ctx.save_for_backward(d_logits @ table, (d_logits.T @ hidden).to(head.dtype))
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor):
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * grad, d_head * grad, None, None, None


def _chunk(logits: Tensor, ids: Tensor, probs: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted loss of some positions and its gradient by their logits, see `distillation_loss`."""
    logits = logits.float()
    log_listed = logits.gather(1, ids)
    largest = logits.amax(-1, keepdim=True)
    exps = logits.sub_(largest).exp_()
    total = exps.sum(-1, keepdim=True)
    log_listed = log_listed - largest - total.log()
    q = log_listed.exp() * (probs > 0)
    rest_p = (1 - probs.sum(-1)).clamp_min(0)
    rest_q = (1 - q.sum(-1)).clamp_min(1e-3)
    loss = -(probs * log_listed).sum(-1) - rest_p * rest_q.log()
    # d loss / d log q of the listed tokens, then through log q = logits - logsumexp(logits)
    d_listed = ((rest_p / rest_q)[:, None] * q - probs) * weights[:, None]
    d_logits = exps.mul_(-d_listed.sum(-1, keepdim=True) / total)
    d_logits.scatter_add_(1, ids, d_listed)
    return (loss * weights).sum(), d_logits


def distillation_loss(hidden: Tensor, head: Tensor, ids: Tensor, probs: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy between the teacher's listed tokens plus "any other" and the student's, summed with weights.

    Up to the teacher's entropy this is KL(p || q) over the listed tokens and one class for the remaining mass.

    Args:
        hidden: [n, width], the student's hidden states; its dtype is that of the products.
        head: [vocab, width], the student's output layer.
        ids: [n, k] draft ids the teacher lists; an entry with probability 0 is ignored.
        probs: [n, k] teacher probabilities, sum at most 1.
        weights: [n], how much a position counts.
    """
    return _DistillationLoss.apply(hidden, head, ids, probs, weights)
