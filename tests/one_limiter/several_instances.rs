//! With several instances, and time to settle between requests, modes that hold nothing in advance answer as the model does.

use weir::limit::Coordination;

use crate::{one_instance::compare, run::Mode};

const INSTANCES: usize = 3;

#[test]
fn strict() {
    compare(Mode::Coordinated(Coordination::Strict), INSTANCES);
}

#[test]
fn interval() {
    compare(Mode::Coordinated(Coordination::Interval), INSTANCES);
}
