//! Random schedules.

use proptest::prelude::*;

use super::{
    cases::{Case, Mix, case},
    checks,
    world::World,
};

fn run(case: &Case) -> Result<(), TestCaseError> {
    let mut world = World::new(case);
    world.run()?;
    checks::check(&world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 1_000, ..ProptestConfig::default() })]

    /// Callers that all can wait: each promise holds, and a rejection is exact.
    #[test]
    fn waiters_are_served_in_order_in_time_and_within_the_limit(case in case(Mix::Waiters)) {
        run(&case)?;
    }

    /// The same beside callers that cannot wait, and with limits that change.
    #[test]
    fn the_limit_holds_beside_ordinary_callers_and_reloads(case in case(Mix::All)) {
        run(&case)?;
    }

    /// The same with timers that are late.
    #[test]
    fn a_late_timer_lets_nobody_pass(case in case(Mix::LateTimers)) {
        run(&case)?;
    }
}
