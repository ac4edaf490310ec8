//! With several instances, and time to settle between requests, every mode answers as the model does.

use weir_limit::Coordination;

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

#[test]
fn lease() {
    compare(Mode::Coordinated(Coordination::Lease), INSTANCES);
}

#[test]
fn auto() {
    compare(Mode::Coordinated(Coordination::Auto), INSTANCES);
}

#[test]
fn mixed() {
    compare(Mode::Mixed, INSTANCES);
}
