//! Notices changes to a directory of rule files, or to single files such as certificates.
//!
//! A change is reported 75 ms after the last event of a burst, and at most a second after the first. A poll every 5 s
//! finds changes that the file system does not report, such as those on network file systems.
//!
//! Directories are watched and not files, because the watch of a file ends when the file is replaced: Kubernetes
//! changes a ConfigMap by swapping a link, and editors write a new file in place of the old one. Directories that hold
//! links on the path to the rules are watched too, since deployments swap `RUNTIME_ROOT` as a whole.

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use tracing::{debug, warn};

use weir_config::files;

/// Files are often written in several steps.
const QUIET: Duration = Duration::from_millis(75);

const MAX_SETTLE: Duration = Duration::from_secs(1);

const POLL: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Watch {
    watched_paths: WatchedPaths,
    poll: Duration,
    /// None if the system grants no more watches; the poll remains.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    events: Arc<Events>,
    /// The events that were there before the last snapshot.
    seen: EventCounts,
    fingerprint: u64,
    next_poll: Instant,
}

/// Absolute, so that a change of the working directory has no effect.
#[derive(Clone, Debug, Default)]
struct WatchedPaths {
    dirs: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

#[derive(Debug, Default)]
struct Events {
    counts: watch::Sender<EventCounts>,
    dirs: Mutex<BTreeSet<PathBuf>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct EventCounts {
    all: u64,
    /// One is a change even with the same fingerprint, as after two writes within a clock tick.
    of_rules: u64,
}

struct FilesSnapshot {
    /// A hash of the names, inodes, sizes and times of all files.
    fingerprint: u64,
    dirs: BTreeSet<PathBuf>,
    link_dirs: BTreeSet<PathBuf>,
}

// === impl Watch ===

impl Watch {
    /// Watches `dir`, which need not exist yet. Call it before the first load: every later change is reported. If the
    /// system grants no watch, a poll finds changes within five seconds.
    pub fn new(dir: &Path) -> Self {
        Self::of(&[], &[dir.to_owned()])
    }

    /// Like [`Watch::new`], for `files` and the links to them. May report changes of other files in their directories.
    pub fn files(files: &[PathBuf]) -> Self {
        Self::of(files, &[])
    }

    /// Like [`Watch::files`] of `files`, together with [`Watch::new`] of each of `dirs`.
    pub fn of(files: &[PathBuf], dirs: &[PathBuf]) -> Self {
        let absolute = |paths: &[PathBuf]| paths.iter().map(|path| absolute(path)).collect();
        let watched_paths = WatchedPaths { dirs: absolute(dirs), files: absolute(files) };
        let events = Arc::new(Events::default());
        let seen = Arc::clone(&events);
        let watcher = notify::recommended_watcher(move |event| seen.add(event))
            .inspect_err(|error| warn!(%error, "cannot watch files; changes are found by polling"))
            .ok();
        Self::with(watched_paths, POLL, watcher, events)
    }

    fn with(
        watched_paths: WatchedPaths,
        poll: Duration,
        watcher: Option<RecommendedWatcher>,
        events: Arc<Events>,
    ) -> Self {
        let next_poll = Instant::now() + poll;
        let mut watch = Self {
            watched_paths,
            poll,
            watcher,
            watched: BTreeSet::new(),
            events,
            seen: EventCounts::default(),
            fingerprint: 0,
            next_poll,
        };
        // twice: the second snapshot sees what was created between the first and its watches
        for _ in 0..2 {
            let snapshot = FilesSnapshot::take(&watch.watched_paths);
            watch.fingerprint = snapshot.fingerprint;
            watch.follow(&snapshot);
        }
        watch
    }

    /// Waits until something below the directory, or a link on the path to it, may have changed since the last call or
    /// since [`Watch::new`]. Dropping the future loses no change.
    pub async fn changed(&mut self) {
        loop {
            if self.events.after(self.seen, self.next_poll).await {
                self.settle().await;
            }
            let counts = *self.events.counts.borrow();
            let paths = self.watched_paths.clone();
            let snapshot = tokio::task::spawn_blocking(move || FilesSnapshot::take(&paths)).await;
            self.next_poll = Instant::now() + self.poll;
            let is_touched = counts.of_rules != self.seen.of_rules;
            self.seen = counts;
            let Ok(snapshot) = snapshot else {
                continue;
            };
            let changed = is_touched || snapshot.fingerprint != self.fingerprint;
            self.fingerprint = snapshot.fingerprint;
            self.follow(&snapshot);
            if changed {
                return;
            }
        }
    }

    async fn settle(&self) {
        let deadline = Instant::now() + MAX_SETTLE;
        loop {
            let (quiet, counts) = (Instant::now() + QUIET, *self.events.counts.borrow());
            if quiet >= deadline || !self.events.after(counts, quiet).await {
                return;
            }
        }
    }

    fn follow(&mut self, snapshot: &FilesSnapshot) {
        self.events.dirs.lock().clone_from(&snapshot.dirs);
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let dirs = &snapshot.dirs | &snapshot.link_dirs;
        for gone in self.watched.difference(&dirs) {
            // fails if the directory was removed, and its watch with it
            let _ = watcher.unwatch(gone);
        }
        self.watched = dirs
            .into_iter()
            .filter(|dir| {
                // even if it is watched already, since another directory may have taken its name
                watcher
                    .watch(dir, RecursiveMode::NonRecursive)
                    .inspect_err(|error| debug!(%error, dir = %dir.display(), "cannot watch a directory"))
                    .is_ok()
            })
            .collect();
    }
}

// === impl Events ===

impl Events {
    fn add(&self, event: notify::Result<Event>) {
        // an error may stand for any lost event
        let of_rules = event.as_ref().map_or(true, |event| event.need_rescan() || self.concerns_rules(event));
        let is_read = |event: &Event| matches!(event.kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write));
        // a reload reads the files, and must not cause another reload
        if event.is_ok_and(|event| is_read(&event) && !event.need_rescan()) {
            return;
        }
        self.counts.send_modify(|counts| {
            counts.all += 1;
            counts.of_rules += u64::from(of_rules);
        });
    }

    /// Waits for an event after `seen`, until `deadline`. Returns whether there is one.
    async fn after(&self, seen: EventCounts, deadline: Instant) -> bool {
        let mut counts = self.counts.subscribe();
        timeout_at(deadline, counts.wait_for(|counts| *counts != seen)).await.is_ok()
    }

    fn concerns_rules(&self, event: &Event) -> bool {
        let dirs = self.dirs.lock();
        // versions of a ConfigMap are added and removed; the fingerprint changes once visible links point to another
        // one
        let is_version = |path: &Path| path.file_name().is_some_and(files::is_internal);
        event
            .paths
            .iter()
            .filter(|path| !is_version(path))
            .any(|path| dirs.contains(path) || path.parent().is_some_and(|dir| dirs.contains(dir)))
    }
}

// === impl FilesSnapshot ===

impl FilesSnapshot {
    fn take(paths: &WatchedPaths) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut snapshot = Self::of_files(&paths.files, &mut hasher);
        paths.dirs.iter().for_each(|dir| snapshot.add_dir(dir, &mut hasher));
        snapshot.fingerprint = hasher.finish();
        snapshot
    }

    fn add_dir(&mut self, dir: &Path, mut hasher: &mut DefaultHasher) {
        // includes hidden files, since a few more files cost less than passing the settings here
        let listing = files::list(dir, false);
        listing.dirs.hash(&mut hasher);
        for (path, error) in listing.failures {
            (path, error.to_string()).hash(&mut hasher);
        }
        listing.skipped.hash(&mut hasher);
        for file in listing.files {
            file.path.hash(&mut hasher);
            file.real.hash(&mut hasher);
            hash_metadata(&file.real, hasher);
        }
        self.dirs.extend(listing.dirs);
        self.link_dirs.append(&mut link_dirs(dir));
    }

    fn of_files(files: &[PathBuf], mut hasher: &mut DefaultHasher) -> Self {
        let (mut dirs, mut links) = (BTreeSet::new(), BTreeSet::new());
        for file in files {
            let real = fs::canonicalize(file).unwrap_or_else(|_| file.clone());
            real.hash(&mut hasher);
            hash_metadata(&real, hasher);
            dirs.extend(real.parent().map(Path::to_owned));
            links.append(&mut link_dirs(file));
        }
        Self { fingerprint: 0, dirs, link_dirs: links }
    }
}

fn hash_metadata(file: &Path, hasher: &mut DefaultHasher) {
    match fs::metadata(file) {
        Ok(data) => {
            // inode and change time distinguish files of the same size and age
            (data.ino(), data.size(), data.mtime(), data.mtime_nsec()).hash(hasher);
            (data.ctime(), data.ctime_nsec()).hash(hasher);
        }
        Err(error) => error.to_string().hash(hasher),
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The directories that hold links on the path to `path`, and the last directory of a path that does not exist.
fn link_dirs(path: &Path) -> BTreeSet<PathBuf> {
    let (mut dirs, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let mut ahead = vec![path.to_owned()];
    while let Some(path) = ahead.pop() {
        if !path.exists() {
            dirs.extend(path.ancestors().find(|part| part.is_dir()).map(Path::to_owned));
        }
        for part in path.ancestors() {
            if let (Ok(target), Some(dir)) = (fs::read_link(part), part.parent())
                && seen.insert(part.to_owned())
            {
                dirs.insert(dir.to_owned());
                ahead.push(dir.join(target));
            }
        }
    }
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_poll_finds_changes_without_events() {
        let dir = tempfile::tempdir().expect("a directory");
        let poll = Duration::from_millis(20);
        let mut watch = Watch::with(
            WatchedPaths { dirs: vec![dir.path().to_owned()], ..WatchedPaths::default() },
            poll,
            None,
            Arc::default(),
        );
        let quiet = tokio::time::timeout(10 * poll, watch.changed()).await;
        assert!(quiet.is_err(), "nothing has changed");
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), "domain: a").expect("a file");
            let changed = tokio::time::timeout(Duration::from_secs(20), watch.changed()).await;
            assert!(changed.is_ok(), "{name}");
        }
    }

    #[test]
    fn every_link_on_the_path_is_found() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("a path");
        fs::create_dir_all(base.join("real/config")).expect("a directory");
        fs::create_dir(base.join("links")).expect("a directory");
        symlink("../real", base.join("links/second")).expect("a link");
        symlink(base.join("links/second"), base.join("first")).expect("a link");
        let dirs = link_dirs(&base.join("first/config"));
        assert_eq!(dirs, BTreeSet::from([base.clone(), base.join("links")]));
        // a missing directory is awaited where it would be created
        let dirs = link_dirs(&base.join("real/config/not/yet"));
        assert_eq!(dirs, BTreeSet::from([base.join("real/config")]));
    }
}
