//! The operations that a simulated store supports.

use weir_limit::Coordination;
use weir_store::{
    name::is_one_window,
    remote::{Command, Target},
};

/// The operations that the store can carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capabilities {
    /// All of them, as Redis can.
    #[default]
    All,
    /// As Memcached can: it grants no more than the fewest hits that are of use. Every other command is rejected.
    SingleFixedWindow,
}

// === impl Capabilities ===

impl Capabilities {
    pub(super) fn support(self, target: &Target, mode: Coordination) -> bool {
        self.include_target(target) && (self == Self::All || mode != Coordination::Lease)
    }

    pub(super) fn include(self, command: &Command) -> bool {
        let Command { target, exchange, .. } = command;
        let is_known =
            exchange.hold.is_none_or(|hold| exchange.reports.is_empty() && hold.least == hold.want);
        self.include_target(target) && (self == Self::All || is_known)
    }

    fn include_target(self, target: &Target) -> bool {
        self == Self::All || is_one_window(target)
    }
}
