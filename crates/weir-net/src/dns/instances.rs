//! The numbers of instances that rules take from DNS: `instances: dns://name`.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    message::{Record, RecordKind},
    name::DnsName,
    resolver::{NameServers, look_up},
};
use weir_limit::{Period, Timestamp, part::UNKNOWN_INSTANCES};

const FIRST: Duration = Duration::from_secs(2);

/// A smaller number takes effect at a multiple of this: instances that notice it early wait for the others.
const STEP: Period = Period::from_secs(10);

/// How the numbers of instances that rules take from DNS are looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSettings {
    pub name_servers: NameServers,
    /// The time between two look-ups of a name. A fifth of it until all names were found.
    pub refresh: Duration,
}

/// The numbers of instances that names stand for, which are looked up again and again.
#[derive(Debug)]
pub struct DnsInstances {
    settings: DnsSettings,
    numbers: BTreeMap<Box<str>, InstanceNumber>,
    next_look_up: Instant,
}

#[derive(Clone, Copy, Debug)]
struct InstanceNumber {
    instances: NonZeroU16,
    is_known: bool,
    /// A smaller one, and when it takes effect.
    smaller: Option<(NonZeroU16, Timestamp)>,
    fails: bool,
}

/// The number of its IPv4 addresses, or of its IPv6 addresses if there are more; at least 1. The error is for people.
async fn count_addresses(name: &str, name_servers: &NameServers) -> Result<usize, String> {
    let name = DnsName::parse(name).ok_or_else(|| format!("{name} is no name"))?;
    let found = look_up(&name, &[RecordKind::A, RecordKind::Aaaa], name_servers).await?;
    let v4 =
        found.iter().filter(|record| matches!(record, Record::Address(address) if address.is_ipv4())).count();
    Ok(v4.max(found.len() - v4))
}

// === impl DnsSettings ===

impl Default for DnsSettings {
    fn default() -> Self {
        Self { name_servers: NameServers::System, refresh: Duration::from_secs(5) }
    }
}

// === impl DnsInstances ===

impl DnsInstances {
    /// Looks up nothing yet.
    pub fn new(settings: DnsSettings) -> Self {
        Self { settings, numbers: BTreeMap::new(), next_look_up: Instant::now() }
    }

    /// Forgets all other names. Looks the new ones up, but waits for no longer than two seconds.
    pub async fn follow(&mut self, names: &BTreeSet<Box<str>>, now: Timestamp) {
        self.numbers.retain(|name, _| names.contains(name));
        let new: Vec<Box<str>> =
            names.iter().filter(|name| !self.numbers.contains_key(*name)).cloned().collect();
        for name in &new {
            let number =
                InstanceNumber { instances: UNKNOWN_INSTANCES, is_known: false, smaller: None, fails: false };
            self.numbers.insert(name.clone(), number);
        }
        if new.is_empty() {
            // rules that are loaded again and again must not put the next look-up off
            return;
        }
        let first = self.look_up(&new, FIRST).await;
        self.record(first, now);
        self.next_look_up = Instant::now() + self.pause();
    }

    /// The number of instances behind `name`; [`UNKNOWN_INSTANCES`](weir_limit::part::UNKNOWN_INSTANCES) before the first answer.
    pub fn of(&self, name: &str) -> NonZeroU16 {
        self.numbers.get(name).map_or(UNKNOWN_INSTANCES, |number| number.instances)
    }

    /// Dropping the future loses no change.
    pub async fn changed(&mut self, now: impl Fn() -> Timestamp) {
        loop {
            if self.numbers.is_empty() {
                std::future::pending::<()>().await;
            }
            let due = self.numbers.values().filter_map(|number| number.smaller).map(|(_, due)| due).min();
            let due = due.map(|due| Instant::now() + due.since(now()).into());
            sleep_until(due.unwrap_or(self.next_look_up).min(self.next_look_up)).await;
            if Instant::now() >= self.next_look_up {
                let names: Vec<Box<str>> = self.numbers.keys().cloned().collect();
                let found = self.look_up(&names, Duration::MAX).await;
                let has_changed = self.record(found, now());
                self.next_look_up = Instant::now() + self.pause();
                if has_changed {
                    return;
                }
            } else if self.apply_smaller(now()) {
                return;
            }
        }
    }

    fn pause(&self) -> Duration {
        let refresh = self.settings.refresh;
        if self.numbers.values().all(|number| number.is_known) { refresh } else { refresh / 5 }
    }

    async fn look_up(&self, names: &[Box<str>], longest: Duration) -> Vec<(Box<str>, Result<usize, String>)> {
        let found = join_all(names.iter().map(async |name| {
            let counting = count_addresses(name, &self.settings.name_servers);
            Some((name.clone(), timeout(longest, counting).await.ok()?))
        }));
        found.await.into_iter().flatten().collect()
    }

    /// Returns whether a number has changed.
    fn record(&mut self, found: Vec<(Box<str>, Result<usize, String>)>, now: Timestamp) -> bool {
        let mut changed = self.apply_smaller(now);
        for (name, found) in found {
            let Some(number) = self.numbers.get_mut(&name) else { continue };
            match found {
                Ok(found) => changed |= number.record(&name, found, now),
                Err(error) => {
                    if !number.fails {
                        let instances = number.instances.get();
                        tracing::warn!(%name, error, instances, "cannot look up the instances, keeping their number");
                    }
                    number.fails = true;
                }
            }
        }
        changed
    }

    fn apply_smaller(&mut self, now: Timestamp) -> bool {
        let mut changed = false;
        for (name, number) in &mut self.numbers {
            if let Some((smaller, _)) = number.smaller.take_if(|(_, due)| *due <= now) {
                number.set(name, smaller);
                changed = true;
            }
        }
        changed
    }
}

// === impl InstanceNumber ===

impl InstanceNumber {
    /// A larger number, and the first one, takes effect at once. Returns whether it does.
    fn record(&mut self, name: &str, found: usize, now: Timestamp) -> bool {
        self.fails = false;
        let found = u16::try_from(found).unwrap_or(u16::MAX);
        let Some(found) = NonZeroU16::new(found) else { return false };
        if !std::mem::replace(&mut self.is_known, true) || found > self.instances {
            self.smaller = None;
            let changes = found != self.instances;
            self.set(name, found);
            return changes;
        }
        self.smaller = (found < self.instances).then(|| {
            let due = Timestamp::from_nanos((now.as_nanos() + 1).next_multiple_of(STEP.as_nanos()));
            // of several smaller ones the last one counts, at the time of the first one
            (found, self.smaller.map_or(due, |(_, due)| due))
        });
        false
    }

    fn set(&mut self, name: &str, instances: NonZeroU16) {
        tracing::info!(name, instances, before = self.instances, "the number of instances has changed");
        self.instances = instances;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn with(name: &str) -> DnsInstances {
        let mut instances = DnsInstances::new(DnsSettings {
            name_servers: NameServers::List(Vec::new()),
            ..DnsSettings::default()
        });
        let number =
            InstanceNumber { instances: UNKNOWN_INSTANCES, is_known: false, smaller: None, fails: false };
        instances.numbers.insert(name.into(), number);
        instances
    }

    #[tokio::test]
    async fn larger_numbers_take_effect_at_once_and_smaller_ones_at_the_next_ten_seconds() {
        let mut instances = with("weir");
        let mut record = |found: Result<usize, String>, now| {
            let changed = instances.record(vec![("weir".into(), found)], at(now));
            (changed, instances.of("weir").get())
        };
        assert_eq!(record(Err("no".into()), 1), (false, 100));
        assert_eq!(record(Ok(3), 2), (true, 3));
        assert_eq!(record(Ok(5), 7), (true, 5));
        assert_eq!(record(Ok(4), 12), (false, 5));
        assert_eq!(record(Err("no".into()), 17), (false, 5));
        assert_eq!(record(Ok(3), 18), (false, 5));
        assert_eq!(record(Ok(3), 20), (true, 3), "the last of two smaller ones");
        // gone before it takes effect
        assert_eq!(
            (record(Ok(2), 21), record(Ok(3), 26), record(Ok(3), 31)),
            ((false, 3), (false, 3), (false, 3))
        );
        assert_eq!((record(Ok(0), 32), record(Ok(99_999), 33)), ((false, 3), (true, 65_535)));
        assert_eq!(instances.of("another").get(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn loads_of_known_names_put_no_look_up_off() {
        let mut instances = with("weir");
        let due = instances.next_look_up;
        tokio::time::sleep(Duration::from_secs(1)).await;
        instances.follow(&BTreeSet::from(["weir".into()]), at(1)).await;
        assert_eq!(instances.next_look_up, due);
    }

    /// Without a name server each is one of a hundred.
    #[tokio::test(start_paused = true)]
    async fn names_that_are_not_found_do_not_delay_a_load() {
        let mut instances = with("old");
        instances.follow(&BTreeSet::from(["weir".into()]), at(1)).await;
        assert_eq!((instances.of("weir"), instances.numbers.len()), (UNKNOWN_INSTANCES, 1));
        assert!(timeout(Duration::from_mins(1), instances.changed(|| at(9))).await.is_err());
    }
}
