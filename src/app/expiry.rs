//! When the certificates that weir uses end: as metrics, and as warnings in the log before they do.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_rustls::rustls::pki_types::UnixTime;
use weir_net::tls::{CertificateDates, CertificateFile, ClientTls, Validity};
use weir_observe::{Metric, Source};
use weir_remotes::RemoteSettings;
use weir_server::Certificates;

use crate::settings::Settings;

/// How often files are read. Those of the gRPC port are watched instead.
const INTERVAL: Duration = Duration::from_secs(15);

/// How long before its end a certificate is warned about, in seconds.
const AHEAD: u64 = 30 * 24 * 60 * 60;

/// A certificate of a shorter life is warned about in the last third of it, when it should have been renewed.
const LAST_PART: u64 = 3;

/// The least time between two warnings about one certificate in the same state.
const REPEAT: Duration = Duration::from_hours(24);

/// The certificates of a file that count, those that end first. It may hold the authorities of a whole system.
const MAX_OF_FILE: usize = 64;

pub(super) struct CertificateExpiry {
    server: Option<Arc<Certificates>>,
    /// The files of weir as a client.
    files: Vec<CertificateFile>,
    /// What each of `files` held when it could be read.
    held: Mutex<Vec<Vec<CertificateDates>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Trouble {
    EndsSoon,
    Ended,
    NotYetValid,
}

type Warned = HashMap<(CertificateDates, Trouble), Instant>;

// === impl CertificateExpiry ===

impl CertificateExpiry {
    pub(super) fn new(settings: &Settings, server: Option<Arc<Certificates>>) -> Self {
        let files = files(settings);
        let held = Mutex::new(vec![Vec::new(); files.len()]);
        Self { server, files, held }
    }

    /// Warns of certificates that end. Never returns.
    pub(super) async fn follow(self: Arc<Self>) {
        if self.server.is_none() && self.files.is_empty() {
            return std::future::pending().await;
        }
        let (mut ticks, mut warned) = (interval(INTERVAL), Warned::new());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let this = Arc::clone(&self);
            // a panic would be a bug of the parser; the next tick tries again
            let Ok(held) = spawn_blocking(move || this.read()).await else { continue };
            warn(&self.all(&held), UnixTime::now(), &mut warned);
            // last, so that what the metrics show is in the log
            *self.held.lock() = held;
        }
    }

    /// A file that cannot be read keeps what it held: its connections report the error.
    fn read(&self) -> Vec<Vec<CertificateDates>> {
        let held = self.held.lock().clone();
        self.files.iter().zip(held).map(|(file, held)| file.read().unwrap_or(held)).collect()
    }

    /// Returns of each file the certificates that end first. `held` has those of weir as a client.
    fn all(&self, held: &[Vec<CertificateDates>]) -> Vec<CertificateDates> {
        let mut all = Vec::new();
        let mut add = |mut of_file: Vec<CertificateDates>| {
            of_file.sort_by_key(|certificate| certificate.validity.not_after);
            of_file.truncate(MAX_OF_FILE);
            all.extend(of_file);
        };
        if let Some(server) = &self.server {
            let dates = server.dates();
            dates.chunk_by(|a, b| a.setting == b.setting).for_each(|of_file| add(of_file.to_vec()));
        }
        held.iter().cloned().for_each(add);
        all
    }
}

impl Source for CertificateExpiry {
    fn metrics(&self) -> Vec<Metric> {
        let now = UnixTime::now().as_secs();
        let metrics = |CertificateDates { setting, position, subject, validity }| {
            let gauge = |name, help, value| {
                Metric::gauge(name, help, value)
                    .label("setting", setting)
                    .label("position", usize::to_string(&position))
                    .label("subject", subject.clone())
            };
            [
                gauge(
                    "weir.certificate.expires_seconds",
                    "The time until a certificate expires; 0 if it has.",
                    validity.not_after.saturating_sub(now),
                ),
                gauge(
                    "weir.certificate.lifetime_seconds",
                    "The time between the first and the last second in which a certificate is valid.",
                    validity.lifetime(),
                ),
            ]
        };
        // the metrics of one name belong together
        let (mut left, mut lifetimes) = (Vec::new(), Vec::new());
        let all = self.all(&self.held.lock());
        for [expires, lifetime] in all.into_iter().map(metrics) {
            left.push(expires);
            lifetimes.push(lifetime);
        }
        left.append(&mut lifetimes);
        left
    }
}

fn files(settings: &Settings) -> Vec<CertificateFile> {
    let mut files = Vec::new();
    let mut add = |setting, path: Option<&PathBuf>| {
        files.extend(path.map(|path| CertificateFile { setting, path: path.clone() }));
    };
    let mut add_client = |ca, certificate, tls: &ClientTls| {
        add(ca, tls.ca.as_ref());
        add(certificate, tls.client.as_ref().map(|(chain, _)| chain));
    };
    if let Some((tls, names)) = settings.shared.as_ref().and_then(RemoteSettings::tls) {
        add_client(names.ca, names.certificate, tls);
    }
    if let Some(tls) = settings.rules.xds.as_ref().and_then(|xds| xds.tls.as_ref()) {
        add_client("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &tls.files);
    }
    let exports = [
        settings.trace.as_ref().map(|trace| &trace.export),
        settings.otlp_metrics.as_ref().map(|metrics| &metrics.export),
    ];
    for (tls, names) in exports.into_iter().flatten().filter_map(|export| export.tls.as_ref()) {
        add_client(names.ca, names.certificate, tls);
    }
    // both exports may have the same settings
    let mut seen = HashSet::new();
    files.retain(|file| seen.insert(file.setting));
    files
}

// === impl Trouble ===

impl Trouble {
    fn of(validity: Validity, now: u64) -> Option<Self> {
        let left = validity.not_after.saturating_sub(now);
        if now > validity.not_after {
            Some(Self::Ended)
        } else if now < validity.not_before {
            Some(Self::NotYetValid)
        } else {
            (left < AHEAD.min(validity.lifetime() / LAST_PART)).then_some(Self::EndsSoon)
        }
    }
}

fn warn(certificates: &[CertificateDates], now: UnixTime, warned: &mut Warned) {
    let found: Vec<(CertificateDates, Trouble)> = certificates
        .iter()
        .filter_map(|certificate| {
            Some((certificate.clone(), Trouble::of(certificate.validity, now.as_secs())?))
        })
        .collect();
    warned.retain(|key, _| found.contains(key));
    for key in found {
        if warned.get(&key).is_some_and(|at| at.elapsed() < REPEAT) {
            continue;
        }
        let (CertificateDates { setting, position, subject, validity }, trouble) = &key;
        let days = validity.not_after.saturating_sub(now.as_secs()) / (24 * 60 * 60);
        match trouble {
            Trouble::EndsSoon => {
                tracing::warn!(setting, position, %subject, days, "a certificate expires soon");
            }
            Trouble::Ended => tracing::warn!(setting, position, %subject, "a certificate has expired"),
            Trouble::NotYetValid => {
                tracing::warn!(setting, position, %subject, "a certificate is not valid yet");
            }
        }
        warned.insert(key, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    #[test]
    fn a_certificate_is_in_trouble_thirty_days_before_its_end_or_in_its_last_third() {
        let year = Validity { not_before: 1000, not_after: 1000 + 365 * DAY };
        let end = year.not_after;
        for (now, expected) in [
            (999, Some(Trouble::NotYetValid)),
            (1000, None),
            (end - 30 * DAY, None),
            (end - 30 * DAY + 1, Some(Trouble::EndsSoon)),
            (end, Some(Trouble::EndsSoon)),
            (end + 1, Some(Trouble::Ended)),
        ] {
            assert_eq!(Trouble::of(year, now), expected, "{now}");
        }
        // as meshes make them: renewed after half of it
        let day = Validity { not_before: 0, not_after: DAY };
        assert_eq!(Trouble::of(day, DAY / 2), None);
        assert_eq!(Trouble::of(day, DAY - DAY / 4), Some(Trouble::EndsSoon));
    }

    #[test]
    fn one_certificate_is_warned_about_once_a_day() {
        let certificate = |position, not_after| {
            let validity = Validity { not_before: 0, not_after };
            CertificateDates { setting: "A", position, subject: "CN=a".into(), validity }
        };
        let (soon, fine) = (certificate(1, 1000 * DAY), certificate(2, 2000 * DAY));
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let mut warned = Warned::new();
        warn(&[soon.clone(), fine.clone()], at(990 * DAY), &mut warned);
        let first = warned.clone();
        assert_eq!(first.keys().collect::<Vec<_>>(), [&(soon.clone(), Trouble::EndsSoon)]);
        warn(&[soon.clone(), fine.clone()], at(991 * DAY), &mut warned);
        assert_eq!(warned, first);
        // its end is another state, and a renewed certificate another one
        warn(&[soon.clone(), fine.clone()], at(1001 * DAY), &mut warned);
        assert_eq!(warned.keys().collect::<Vec<_>>(), [&(soon, Trouble::Ended)]);
        warn(&[fine], at(1001 * DAY), &mut warned);
        assert!(warned.is_empty());
    }
}
