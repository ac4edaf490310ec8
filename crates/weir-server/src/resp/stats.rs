use super::commands::COMMANDS;
use weir_observe::{Counter, Metric, Source};

#[derive(Debug, Default)]
pub(super) struct RespStats {
    commands: [Counter; COMMANDS.len()],
    pub(super) unknown: Counter,
    pub(super) errors: Counter,
    pub(super) limited: Counter,
    pub(super) auth_failed: Counter,
}

// === impl RespStats ===

impl RespStats {
    pub(super) fn count(&self, index: usize) {
        self.commands[index].add(1);
    }

    pub(super) fn total(&self) -> u64 {
        self.commands.iter().map(Counter::get).sum::<u64>() + self.unknown.get()
    }
}

impl Source for RespStats {
    fn metrics(&self) -> Vec<Metric> {
        let counts = COMMANDS.iter().map(|command| command.name).zip(self.commands.iter());
        let counts = counts.chain([("unknown", &self.unknown)]);
        let mut metrics: Vec<Metric> = counts
            .map(|(name, count)| {
                let help = "Commands received on the port of Redis' protocol, by command.";
                Metric::counter("weir.redis_port.commands", help, count.get()).label("command", name)
            })
            .collect();
        metrics.extend([
            Metric::counter(
                "weir.redis_port.errors",
                "Commands on the port of Redis' protocol that were answered with an error.",
                self.errors.get(),
            ),
            Metric::counter(
                "weir.redis_port.limited",
                "Requests that rate limiting commands of Redis' protocol rejected.",
                self.limited.get(),
            ),
            Metric::counter(
                "weir.redis_port.auth_failed",
                "Attempts to authenticate on the port of Redis' protocol that failed.",
                self.auth_failed.get(),
            ),
        ]);
        metrics
    }
}
