use std::{future, time::Duration};

use tokio::time;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionAge {
    /// The age, plus or minus a tenth, at which the client is asked to open another connection; none for no bound.
    pub max: Option<Duration>,
    /// The time after that at which the connection is closed, even with open requests; none for no bound.
    pub grace: Option<Duration>,
}

// === impl ConnectionAge ===

impl ConnectionAge {
    pub async fn reached(self) {
        sleep(self.max.map(jittered)).await;
    }

    pub async fn grace_over(self) {
        sleep(self.grace).await;
    }
}

async fn sleep(period: Option<Duration>) {
    match period {
        Some(period) => time::sleep(period).await,
        None => future::pending().await,
    }
}

/// Connections that opened together, as after a restart, must not all reopen together.
fn jittered(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_up_to_a_tenth() {
        let ages: Vec<u128> = (0..200).map(|_| jittered(Duration::from_secs(1000)).as_millis()).collect();
        assert!(ages.iter().all(|age| (900_000..=1_100_000).contains(age)));
        assert!(ages.iter().any(|age| *age < 970_000) && ages.iter().any(|age| *age > 1_030_000));
    }
}
