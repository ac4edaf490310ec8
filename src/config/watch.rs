//! Tells when a directory of rule files may have changed.
//!
//! Directories are watched, never files: a ConfigMap is changed by swapping a link, an editor writes a new file in the
//! place of the old, and the watch of a file dies with it. For the same reason the directories that hold the links on
//! the way to the rules are watched: `RUNTIME_ROOT` is swapped as a whole. What the system does not tell, a slow poll
//! finds.

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tracing::{debug, warn};

use super::files;

/// A change is told when nothing has happened for this long: files are often written in several steps.
const QUIET: Duration = Duration::from_millis(75);

/// A change is told after this long even if it does not end.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often the directory is looked at in case the system keeps quiet, as network file systems do.
const POLL: Duration = Duration::from_secs(5);

/// Links that are followed on the way to the directory; as many as the system follows.
const MOST_LINKS: usize = 40;

/// Watches a directory of rule files.
#[derive(Debug)]
pub struct Watch {
    dir: PathBuf,
    poll: Duration,
    /// None if the system has no more watches to give; the poll remains.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    bell: Arc<Bell>,
    /// What was seen when a change was last told.
    seen: u64,
    next_poll: Instant,
}

/// What the watcher's thread rings.
#[derive(Debug, Default)]
struct Bell {
    rung: Notify,
    /// Something happened among the rules themselves. A change that leaves no trace that a look could find, such as two
    /// writes within the file system's tick, is still one.
    touched: AtomicBool,
    /// The directories that the rules are in, links resolved.
    dirs: Mutex<BTreeSet<PathBuf>>,
}

/// How a directory stands.
struct Look {
    /// Differs when anything that matters does.
    fingerprint: u64,
    /// The directories that the rules are in, links resolved.
    dirs: BTreeSet<PathBuf>,
    /// The directories that decide where the rules are: they hold links.
    way: BTreeSet<PathBuf>,
}

// === impl Watch ===

impl Watch {
    /// Watches `dir`, which need not be there yet. Make it before the rules are read for the first time: it tells every
    /// change from now on.
    ///
    /// If the system gives no watches, that is logged, and changes are found some seconds late.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let bell = Arc::new(Bell::default());
        let ringing = Arc::clone(&bell);
        let watcher = notify::recommended_watcher(move |event| ringing.hear(event))
            .inspect_err(|error| warn!(%error, "cannot watch the rules; changes are found by polling"))
            .ok();
        Self::with(dir, POLL, watcher, bell)
    }

    fn with(dir: &Path, poll: Duration, watcher: Option<RecommendedWatcher>, bell: Arc<Bell>) -> Self {
        // a relative path would mean another directory after a change of the process's own
        let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let next_poll = Instant::now() + poll;
        let mut watch = Self { dir, poll, watcher, watched: BTreeSet::new(), bell, seen: 0, next_poll };
        // twice: what comes into being between a look and its watches is seen by the second
        for _ in 0..2 {
            let look = Look::at(&watch.dir);
            watch.seen = look.fingerprint;
            watch.follow(&look);
        }
        watch
    }

    /// Resolves when something under the directory may have changed since the last time, or since it was made; also
    /// when a link on the way to it has.
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn changed(&mut self) {
        loop {
            let rung = timeout_at(self.next_poll, self.bell.rung.notified()).await.is_ok();
            let mut reminder = Reminder { bell: Arc::clone(&self.bell), touched: false, due: rung };
            if rung {
                self.settle().await;
            }
            let touched = self.bell.touched.swap(false, Ordering::AcqRel);
            reminder.touched = touched;
            reminder.due |= touched;
            let dir = self.dir.clone();
            let look = tokio::task::spawn_blocking(move || Look::at(&dir)).await;
            reminder.due = false;
            self.next_poll = Instant::now() + self.poll;
            let Ok(look) = look else {
                continue;
            };
            let changed = touched || look.fingerprint != self.seen;
            self.seen = look.fingerprint;
            self.follow(&look);
            if changed {
                return;
            }
        }
    }

    /// Waits until there is quiet, but not for ever.
    async fn settle(&self) {
        let patience = Instant::now() + PATIENCE;
        loop {
            let quiet = Instant::now() + QUIET;
            if quiet >= patience || timeout_at(quiet, self.bell.rung.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Watches what was looked at, and nothing else.
    fn follow(&mut self, look: &Look) {
        self.bell.dirs.lock().clone_from(&look.dirs);
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let dirs = &look.dirs | &look.way;
        for gone in self.watched.difference(&dirs) {
            // it may be gone for good, and its watch with it
            let _ = watcher.unwatch(gone);
        }
        self.watched = dirs
            .into_iter()
            .filter(|dir| {
                // again, even if it is watched: another directory may have taken its name
                watcher
                    .watch(dir, RecursiveMode::NonRecursive)
                    .inspect_err(|error| debug!(%error, dir = %dir.display(), "cannot watch a folder"))
                    .is_ok()
            })
            .collect();
    }
}

/// Rings again if it is dropped while due: the one who heard the bell has left before telling of it.
struct Reminder {
    bell: Arc<Bell>,
    touched: bool,
    due: bool,
}

impl Drop for Reminder {
    fn drop(&mut self) {
        if self.due {
            self.bell.touched.fetch_or(self.touched, Ordering::AcqRel);
            self.bell.rung.notify_one();
        }
    }
}

// === impl Bell ===

impl Bell {
    /// Takes note of what the system tells.
    fn hear(&self, event: notify::Result<Event>) {
        // an error may have swallowed anything
        let Ok(event) = event else {
            self.touched.store(true, Ordering::Release);
            return self.rung.notify_one();
        };
        let read_only = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
            EventKind::Access(_) => true,
            _ => false,
        };
        if event.need_rescan() || (!read_only && self.concerns_rules(&event)) {
            self.touched.store(true, Ordering::Release);
        } else if read_only {
            // a reload reads, and must not lead to another
            return;
        }
        self.rung.notify_one();
    }

    fn concerns_rules(&self, event: &Event) -> bool {
        let dirs = self.dirs.lock();
        event
            .paths
            .iter()
            .any(|path| dirs.contains(path) || path.parent().is_some_and(|dir| dirs.contains(dir)))
    }
}

// === impl Look ===

impl Look {
    /// Looks at `dir` and everything below.
    fn at(dir: &Path) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut dirs = BTreeSet::new();
        // hidden files too: to look at a few more costs less than to know the settings here
        let listing = files::list(dir, false);
        for real in listing.dirs {
            real.hash(&mut hasher);
            dirs.insert(real);
        }
        for (path, error) in listing.failures {
            (path, error.to_string()).hash(&mut hasher);
        }
        for file in listing.files {
            file.path.hash(&mut hasher);
            file.real.hash(&mut hasher);
            match fs::metadata(&file.real) {
                Ok(data) => {
                    // the inode and the time of its last change tell a file from another of the same size and age
                    (data.ino(), data.size(), data.mtime(), data.mtime_nsec()).hash(&mut hasher);
                    (data.ctime(), data.ctime_nsec()).hash(&mut hasher);
                }
                Err(error) => error.to_string().hash(&mut hasher),
            }
        }
        Self { fingerprint: hasher.finish(), dirs, way: links_on_the_way(dir) }
    }
}

/// The directories that hold the links on the way to `path`, and the last one on the way that is there.
fn links_on_the_way(path: &Path) -> BTreeSet<PathBuf> {
    let mut dirs = BTreeSet::new();
    let mut links = 0;
    let mut way = PathBuf::from("/");
    // the steps ahead, last first
    let mut ahead: Vec<PathBuf> = steps(path);
    while let Some(step) = ahead.pop() {
        if step == Path::new("..") {
            way.pop();
            continue;
        }
        let next = way.join(&step);
        match fs::read_link(&next) {
            Ok(target) if links < MOST_LINKS => {
                links += 1;
                dirs.insert(way.clone());
                if target.is_absolute() {
                    way = PathBuf::from("/");
                }
                ahead.extend(steps(&target));
            }
            _ if next.exists() => way = next,
            _ => {
                dirs.insert(way);
                break;
            }
        }
    }
    dirs
}

/// The named steps of `path`, last first.
fn steps(path: &Path) -> Vec<PathBuf> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_system_does_not_tell_is_found_by_looking() {
        let dir = tempfile::tempdir().expect("a directory");
        let poll = Duration::from_millis(20);
        let mut watch = Watch::with(dir.path(), poll, None, Arc::default());
        let quiet = tokio::time::timeout(10 * poll, watch.changed()).await;
        assert!(quiet.is_err(), "nothing has changed");
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), "domain: a").expect("a file");
            let changed = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
            assert!(changed.is_ok(), "{name}");
        }
    }

    #[test]
    fn every_link_on_the_way_is_found() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(base.join("real/config")).expect("a directory");
        fs::create_dir(base.join("links")).expect("a directory");
        symlink("../real", base.join("links/second")).expect("a link");
        symlink(base.join("links/second"), base.join("first")).expect("a link");
        let dirs = links_on_the_way(&base.join("first/config"));
        assert_eq!(dirs, BTreeSet::from([base.clone(), base.join("links")]));
        // what is not there is waited for where it would come into being
        let dirs = links_on_the_way(&base.join("real/config/not/yet"));
        assert_eq!(dirs, BTreeSet::from([base.join("real/config")]));
    }
}
