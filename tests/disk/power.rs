//! A simulated power failure: files have what they had when they were last synced, directories the names that they had
//! then.
//!
//! A library that is loaded into weir (`shim/synced.rs`) keeps both. It simulates the least that a file system
//! promises; real ones usually keep more.

use std::{
    fs::{self, File, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::UNIX_EPOCH,
};

use tempfile::TempDir;

/// What is durable of the files of a weir.
pub(crate) struct Power {
    dir: TempDir,
}

fn key(metadata: &Metadata) -> String {
    let born = metadata.created().expect("the time of birth").duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", metadata.ino(), born.as_nanos())
}

// === impl Power ===

impl Power {
    /// Compiles the library.
    pub(crate) fn new() -> Self {
        let power = Self { dir: tempfile::tempdir().expect("a directory") };
        let compiled = Command::new("rustc")
            .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "panic=abort", "-o"])
            .arg(power.preloaded())
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/disk/shim/synced.rs"))
            .status();
        assert!(compiled.expect("rustc").success());
        power
    }

    fn preloaded(&self) -> PathBuf {
        self.dir.path().join("synced.so")
    }

    fn synced(&self) -> PathBuf {
        self.dir.path().join("synced")
    }

    /// Returns the variables of a weir with these data, all of which are durable now.
    pub(crate) fn begin(&self, data: &Path) -> Vec<(&'static str, String)> {
        let _ = fs::remove_dir_all(self.synced());
        fs::create_dir(self.synced()).expect("a directory");
        fs::create_dir_all(data).expect("a directory");
        self.keep(data);
        let text = |path: &Path| path.to_str().expect("a plain path").to_owned();
        vec![
            ("LD_PRELOAD", text(&self.preloaded())),
            ("SYNCED_DIR", text(&self.synced())),
            ("SYNCED_ROOT", text(data)),
        ]
    }

    fn keep(&self, path: &Path) {
        let metadata = fs::metadata(path).expect("a file");
        let kept = if metadata.is_dir() {
            let mut lines = String::new();
            for entry in fs::read_dir(path).expect("a directory").flatten() {
                self.keep(&entry.path());
                let name = entry.file_name().into_string().expect("a plain name");
                lines.extend([&key(&entry.metadata().expect("a file")), " ", &name, "\n"]);
            }
            lines.into_bytes()
        } else {
            let mut kept = metadata.len().to_le_bytes().to_vec();
            kept.extend(fs::read(path).expect("a file"));
            kept
        };
        fs::write(self.synced().join(key(&metadata)), kept).expect("a file");
    }

    /// Leaves of the data what was synced, after the process has ended.
    pub(crate) fn cut(&self, data: &Path) {
        let (left, gone) = (data.with_extension("left"), data.with_extension("gone"));
        self.restore(data, &key(&fs::metadata(data).expect("a directory")), &left);
        fs::rename(data, &gone).expect("the data");
        fs::rename(&left, data).expect("the data");
        fs::remove_dir_all(&gone).expect("the data");
    }

    /// Writes what is durable of the file `path`, which has this key, to `to`.
    fn restore(&self, path: &Path, key: &str, to: &Path) {
        let kept = fs::read(self.synced().join(key)).ok();
        // names of files that have gone meanwhile are of files
        if path.is_dir() {
            fs::create_dir(to).expect("a directory");
            let lines = String::from_utf8(kept.unwrap_or_default()).expect("text");
            for (key, name) in lines.lines().filter_map(|line| line.split_once(' ')) {
                self.restore(&path.join(name), key, &to.join(name));
            }
            return;
        }
        let file = File::create(to).expect("a file");
        if let Some((length, bytes)) = kept.as_deref().and_then(|kept| kept.split_first_chunk()) {
            fs::write(to, bytes).expect("a file");
            file.set_len(u64::from_le_bytes(*length)).expect("a length");
        }
    }
}

/// The simulation loses what is not synced: otherwise the tests that use it would show nothing.
#[test]
fn what_is_not_synced_is_lost() {
    let power = Power::new();
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    fs::create_dir(&data).expect("a directory");
    fs::write(data.join("old"), "before").expect("a file");
    let variables = power.begin(&data);
    let script = "printf after > new && sync new && sync . && printf more >> new && printf x > unnamed && sync unnamed \
        && mv old renamed && printf y > unsynced && printf after >> renamed";
    let run = Command::new("sh").args(["-c", script]).current_dir(&data).envs(variables).status();
    assert!(run.expect("sh").success());
    power.cut(&data);
    let mut left: Vec<(String, String)> = fs::read_dir(&data)
        .expect("a directory")
        .flatten()
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).expect("text");
            (entry.file_name().into_string().expect("a plain name"), text)
        })
        .collect();
    left.sort();
    let expected = [("new", "after"), ("old", "before")];
    assert_eq!(left, expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
}
