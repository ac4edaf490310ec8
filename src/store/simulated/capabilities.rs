//! The operations that a simulated store supports.

use crate::{
    limit::{Algorithm, Coordination},
    store::remote::{Command, Op, Target},
};

/// The operations that the store can carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capabilities {
    /// All of them, as Redis can.
    #[default]
    All,
    /// Adding to a single fixed window and taking from it, as Memcached can. Every other command is rejected.
    SingleFixedWindow,
}

// === impl Capabilities ===

impl Capabilities {
    /// Returns whether `target` can be counted in coordination mode `mode`.
    pub(super) fn support(self, target: &Target, mode: Coordination) -> bool {
        self.include_target(target) && (self == Self::All || mode != Coordination::Lease)
    }

    /// Returns whether `command` can be carried out.
    pub(super) fn include(self, command: &Command) -> bool {
        let known_op = match &command.op {
            Op::Add { report } => report.unused.is_none(),
            Op::Take { .. } => true,
            Op::Grant { .. } => false,
        };
        self.include_target(&command.target) && (self == Self::All || known_op)
    }

    fn include_target(self, target: &Target) -> bool {
        self == Self::All || matches!(&target.tiers[..], [tier] if tier.algorithm == Algorithm::FixedWindow)
    }
}
