use super::*;

#[test]
fn the_distance_of_two_calls_fits_into_a_round_trip_and_the_budget() {
    let micros = Duration::from_micros;
    for (round_trip, most, distance) in [
        (0, FEW_CALLS, 0),
        (399, FEW_CALLS, 0),
        (400, MAX_CALLS, 50),
        (4_000, MAX_CALLS, 500),
        (12_000, MAX_CALLS, 1_500),
        // half of what the budget of 15 ms leaves
        (13_000, MAX_CALLS, 1_000),
        (15_000, MAX_CALLS, 0),
        (90_000, MAX_CALLS, 0),
    ] {
        assert_eq!(pace(micros(round_trip), micros(15_000)), (most, micros(distance)), "{round_trip}");
    }
}
