//! Damaged files: found, told with their name, and never turned into wrong counts without a word.
//!
//! `WEIR_FLIPS` sets the number of flipped bytes in each kind of file.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use weir_disk::{Data, DiskError, OnDamage};
use weir_store::clock::Clock as _;

use crate::support::{Disk, Opened, paced, steps, until};

/// The counters in tables, and as many in the journal.
const COUNTERS: u32 = 1_500;

/// Takes hits of a counter, or tokens of a bucket that comes with requests.
fn take(opened: &Opened, i: u32, hits: u32) {
    let value = i.to_string();
    match i % 3 {
        0 => drop(opened.take(&value, hits)),
        1 => drop(opened.tokens(&value, &paced(hits.into()))),
        _ => drop(opened.tokens(&value, &steps(100, hits.into()))),
    }
}

/// Returns what was taken.
fn taken(opened: &Opened, i: u32) -> u64 {
    let value = i.to_string();
    match i % 3 {
        0 => opened.hits(&value),
        1 => 100 - opened.tokens(&value, &paced(0)),
        _ => 100 - opened.tokens(&value, &steps(100, 0)),
    }
}

/// Opens data with known counters, in tables and in the journal, as a kill leaves them.
fn data() -> Disk {
    let disk = Disk::new();
    let fill = |opened: &Opened, from: u32| {
        for i in from..from + COUNTERS {
            take(opened, i, 1 + i % 9);
        }
    };
    let opened = disk.open();
    fill(&opened, 0);
    opened.close();
    let opened = disk.open();
    fill(&opened, COUNTERS);
    opened.written();
    // not closed
    disk.copy()
}

/// Reads everything. Returns the hits of each counter.
fn read(disk: &Disk) -> Result<BTreeMap<String, u64>, DiskError> {
    let data = Data::open(&disk.settings.dir, disk.clock.now())?;
    data.verify()?;
    let mut hits = BTreeMap::new();
    data.visit("", |counter| {
        let state = counter.state.expect("the record is whole");
        hits.insert(format!("{} {}", counter.path, counter.tier), state.used().0);
        true
    })?;
    Ok(hits)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Returns the file below `dir` whose path ends so, relative to `dir`; the one with the highest number if there are
/// several.
fn find(dir: &Path, kind: &str) -> PathBuf {
    let (parent, name) = kind.rsplit_once('/').unwrap_or(("", kind));
    let mut found: Vec<_> = files(dir)
        .into_iter()
        .filter(|file| {
            let file_name = file.file_name().expect("a name").to_string_lossy().into_owned();
            let matches = match name {
                "*" => true,
                "v*" => file_name.starts_with('v') && file_name != "version",
                name => name.strip_prefix('*').map_or(file_name == name, |end| file_name.ends_with(end)),
            };
            file.parent().expect("a parent").ends_with(parent) && matches
        })
        .collect();
    found.sort_by_key(|file| fs::metadata(file).map_or(0, |metadata| metadata.len()));
    let file = found.pop().unwrap_or_else(|| panic!("no {kind}"));
    file.strip_prefix(dir).expect("it is below").to_owned()
}

fn flips() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "it sets the test, not weir")]
    std::env::var("WEIR_FLIPS").ok().and_then(|flips| flips.parse().ok()).unwrap_or(12)
}

/// Flips bytes of one kind of file, one at a time.
fn flip(kind: &str) {
    let whole = data();
    let expected = read(&whole.copy()).expect("nothing is damaged");
    assert_eq!(expected.len(), 2 * COUNTERS as usize + 1);
    let file = find(&whole.settings.dir, kind);
    let contents = fs::read(whole.settings.dir.join(&file)).expect("the file");
    // the rest of a journal is zeros that were never written
    let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1) as u64;
    let (mut told, mut harmless) = (0, 0);
    for flip in 0..flips() {
        // spread over the file, with each bit in turn
        let at = usize::try_from(flip * 2_654_435_761 % used).expect("an offset");
        let damaged = whole.copy();
        let mut contents = contents.clone();
        contents[at] ^= 1 << (flip % 8);
        fs::write(damaged.settings.dir.join(&file), contents).expect("the file");
        match read(&damaged) {
            Err(error) => {
                told += 1;
                let text = error.to_string();
                let is_told = error.is_damage() || matches!(error, DiskError::Newer { .. });
                assert!(
                    is_told && text.contains(damaged.settings.dir.to_str().expect("a plain path")),
                    "{text}"
                );
                // a second attempt must not find it in order, because the first one has removed the traces
                if let Ok(hits) = read(&damaged) {
                    panic!("{kind}, byte {at}: refused once ({text}), then {} counters", hits.len());
                }
            }
            Ok(hits) => {
                harmless += 1;
                assert!(hits == expected, "{kind}, byte {at}: silently wrong");
            }
        }
    }
    eprintln!("{kind}: {told} flips found, {harmless} without effect");
}

#[test]
fn flips_in_the_format() {
    flip("data/format");
}

#[test]
fn flips_in_the_numbers() {
    flip("data/progress");
}

#[test]
fn flips_in_the_version_of_the_engine() {
    flip("engine/version");
}

#[test]
fn flips_in_a_journal() {
    flip("engine/*.jnl");
}

#[test]
fn flips_in_a_table() {
    flip("1/tables/*");
}

#[test]
fn flips_in_a_list_of_tables() {
    flip("1/v*");
}

#[test]
fn flips_in_the_name_of_a_list() {
    flip("1/current");
}

#[test]
fn flips_in_a_table_of_the_engine() {
    flip("0/tables/*");
}

#[test]
fn flips_in_a_list_of_the_engine() {
    flip("0/v*");
}

/// Files that are cut off or gone.
#[test]
fn missing_parts_are_told() {
    let whole = data();
    let expected = read(&whole.copy()).expect("nothing is damaged");
    for kind in ["data/progress", "engine/version", "engine/*.jnl", "1/tables/*", "1/v*", "1/current", "0/v*"]
    {
        let file = find(&whole.settings.dir, kind);
        for cut in [true, false] {
            let damaged = whole.copy();
            let path = damaged.settings.dir.join(&file);
            let contents = fs::read(&path).expect("the file");
            let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if cut {
                fs::write(&path, &contents[..used / 2]).expect("the file");
            } else {
                fs::remove_file(&path).expect("the file");
            }
            match read(&damaged) {
                Ok(hits) => assert!(hits == expected, "{kind} is silently missing"),
                Err(error) => assert!(error.is_damage(), "{kind}: {error}"),
            }
        }
    }
}

/// A record that was not written completely is none.
#[test]
fn a_torn_record_at_the_end_is_dropped() {
    let whole = data();
    let expected = read(&whole.copy()).expect("nothing is damaged");
    let file = find(&whole.settings.dir, "engine/*.jnl");
    let contents = fs::read(whole.settings.dir.join(&file)).expect("the journal");
    let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    for torn in [1, 10, 100, 1_000] {
        let damaged = whole.copy();
        let mut contents = contents.clone();
        // a second batch like the first one, without its end
        let begin: Vec<u8> = contents[..torn].to_vec();
        contents.truncate(used);
        contents.extend(begin);
        fs::write(damaged.settings.dir.join(&file), contents).expect("the journal");
        assert!(read(&damaged).is_ok_and(|hits| hits == expected), "{torn} bytes");
        // and weir starts
        let opened = damaged.open();
        assert_eq!([0, 1, 2].map(|i| taken(&opened, i)), [1, 2, 3]);
    }
}

/// With `continue` weir starts with what is left. What is there is right.
#[test]
fn weir_goes_on_with_what_is_left() {
    let whole = data();
    for kind in ["data/progress", "engine/version", "engine/*.jnl", "1/tables/*", "1/v*", "1/current", "0/v*"]
    {
        let file = find(&whole.settings.dir, kind);
        let mut damaged = whole.copy();
        let path = damaged.settings.dir.join(&file);
        let mut contents = fs::read(&path).expect("the file");
        let used = contents.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for at in [used / 2, used - 1, 5] {
            contents[at.min(used - 1)] ^= 0x10;
        }
        if kind == "data/progress" {
            contents.fill(7);
        }
        fs::write(&path, &contents).expect("the file");
        damaged.settings.on_damage = OnDamage::Continue;
        let opened = damaged.open();
        until("the damage is found", || opened.metric("weir.disk.damaged") > 0);
        let mut kept = 0;
        for i in 0..2 * COUNTERS {
            let hits = taken(&opened, i);
            assert!(hits == 0 || hits == u64::from(1 + i % 9), "{kind}: {i} has {hits} hits");
            kept += u32::from(hits > 0);
        }
        if ["data/progress", "engine/*.jnl"].contains(&kind) {
            assert!(kept >= COUNTERS, "{kind}: {kept} are left");
        }
        // it counts and writes
        opened.take("new", 3);
        opened.written();
        opened.close();
        damaged.settings.on_damage = OnDamage::Refuse;
        let opened = damaged.open();
        assert_eq!(opened.hits("new"), 3, "{kind}");
        eprintln!("{kind}: {kept} of {} counters are left", 2 * COUNTERS);
    }
}

/// Tables of which nothing, not the beginning, or no byte is left.
#[test]
fn weir_goes_on_without_a_table() {
    // everything is in tables, also the number of the last batch
    let whole = Disk::new();
    let opened = whole.open();
    (0..COUNTERS).for_each(|i| take(&opened, i, 9));
    opened.close();
    for kind in ["0/tables/*", "1/tables/*"] {
        for left in [None, Some("cut"), Some("flipped")] {
            let mut damaged = whole.copy();
            let path = damaged.settings.dir.join(find(&whole.settings.dir, kind));
            match left {
                None => fs::remove_file(&path).expect("it is there"),
                Some("cut") => fs::write(&path, "").expect("it can be written"),
                _ => {
                    let mut contents = fs::read(&path).expect("the file");
                    contents[..12].iter_mut().for_each(|byte| *byte ^= 0x10);
                    fs::write(&path, &contents).expect("the file");
                }
            }
            let refused = damaged.try_open().err().expect("it is damaged");
            assert!(refused.is_damage(), "{kind} {left:?}: {refused}");
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            assert!(refused.to_string().contains(&format!("tables/{name} is damaged")), "{refused}");
            damaged.settings.on_damage = OnDamage::Continue;
            let opened = damaged.open();
            assert!(opened.metric("weir.disk.damaged") > 0, "{kind} {left:?}");
            // nothing is counted meanwhile
            opened.close();
            damaged.settings.on_damage = OnDamage::Refuse;
            let opened = damaged.open();
            opened.take("new", 3);
            opened.written();
            assert_eq!(opened.hits("new"), 3);
        }
    }
}

/// Without `continue`, damage that is found later leaves decisions to `on_store_failure`, and the files as they are.
#[test]
fn unreadable_counters_are_left_to_on_store_failure() {
    let disk = Disk::new();
    let opened = disk.open();
    for i in 0..COUNTERS {
        take(&opened, i, 9);
    }
    opened.close();
    let table = disk.settings.dir.join(find(&disk.settings.dir, "1/tables/*"));
    let mut contents = fs::read(&table).expect("the table");
    // the blocks of data are in the beginning
    let end = contents.len() / 3;
    contents[..end].iter_mut().step_by(64).for_each(|byte| *byte ^= 1);
    fs::write(&table, &contents).expect("the table");
    let Ok(store) = disk.try_open() else { return };
    drop(store);
    let opened = disk.open();
    until("the damage is found", || opened.metric("weir.disk.damaged") > 0);
    for i in 0..20 {
        take(&opened, i, 1);
        assert!(taken(&opened, i) > 0);
    }
    assert!(opened.metric("weir.disk.fallback") > 0);
    opened.close();
    assert_eq!(fs::read(&table).expect("the table"), contents, "for whoever wants to repair it");
}
