"""Cal-QL, Nakamoto et al. 2023 (arXiv:2303.05479): CQL that lowers no Q value below the return of the recorded policy.

CQL lowers Q of the policy's actions without a limit. So after a switch from data to an environment, its values are too
low and grow first, while the policy forgets. Cal-QL lowers max(Q(o, a'), G) instead. G is the recorded return from the
step on: discounted by `gamma`, of scaled and shifted rewards, as in targets. Where Q(o, a') is below G, the term has no
gradient. Q of uniform actions has no limit.

G is exact if the episode terminated. An episode that did not, as at a time limit or in a cut recording, goes on forever
with its last reward r. So all steps of a failed episode with sparse rewards have G = r / (1 - gamma). The error of this
guess counts gamma^n times at the step that is n steps before the episode's end. Online, the steps of an unfinished
episode have no limit until it ends. With `gamma` = 1, only episodes that terminated have one.

Differs from the authors' code:

- The code extends the last reward only in kitchen tasks, and in mazes and with hands only in episodes without success.
  It adds nothing after other time limits.
- The multiplier's threshold is that of the weighted gap: it is the code's `cql_target_action_gap` times the weight.
- With `max_q_backup`, each critic has a maximum over actions of its own, as in CQL. The code takes the minimum over
  critics first.
- The multiplier starts at 1, the code's at e. The points of CQL's page apply, too.
"""

import torch
from torch import Tensor

from offpcc.algorithms.cql import CQL
from offpcc.config.registry import configurable
from offpcc.core import Batch


@configurable
class CalQL(CQL):
    """Cal-QL, Nakamoto et al. 2023 (arXiv:2303.05479). Arguments: see `CQL`."""

    reads_returns = True

    def sampled_values(self, q: Tensor, batch: Batch) -> Tensor:
        """Return max(Q(o, a'), G) for actions a' of the policy, and Q(o, a') for uniform ones (section 5)."""
        returns, discounts = batch.recorded_returns()
        limit = (self.reward_scale * returns + self.reward_shift * discounts).unsqueeze(-2)
        uniform, of_policy = q[..., : self.num_samples, :], q[..., self.num_samples :, :]
        limited = torch.where((discounts > 0.0).unsqueeze(-2), torch.maximum(of_policy, limit), of_policy)
        return torch.cat([uniform, limited], -2)
