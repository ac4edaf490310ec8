//! Directories that cannot be used, and what users are told.

use std::{fs, path::Path};

use weir_disk::DiskError;

use crate::support::{Disk, until};

fn refused(disk: &Disk) -> DiskError {
    disk.try_open().err().expect("it cannot be used")
}

#[test]
fn a_second_store_is_refused() {
    let disk = Disk::new();
    let opened = disk.open();
    let error = refused(&disk);
    assert!(matches!(error, DiskError::InUse(_)), "{error}");
    opened.close();
}

#[test]
fn a_newer_format_is_refused() {
    let disk = Disk::new();
    disk.open().close();
    let format = disk.settings.dir.join("format");
    assert_eq!(fs::read_to_string(&format).expect("the format"), "weir data 1\n");
    fs::write(&format, "weir data 2\n").expect("a newer format");
    let error = refused(&disk);
    assert!(matches!(error, DiskError::Newer { found: 2, supported: 1, .. }), "{error}");
    assert!(error.to_string().contains("have format 2, and this version of weir reads format 1"), "{error}");
}

#[test]
fn a_directory_with_other_files_is_refused() {
    let disk = Disk::new();
    fs::create_dir_all(disk.settings.dir.join("lost+found")).expect("a directory");
    fs::write(disk.settings.dir.join("holiday.jpg"), "").expect("a file");
    let error = refused(&disk);
    assert!(error.to_string().contains("holiday.jpg"), "{error}");
    assert_eq!(fs::read_dir(&disk.settings.dir).expect("a directory").count(), 2, "nothing was added");
    fs::remove_file(disk.settings.dir.join("holiday.jpg")).expect("a file");
    // what a file system of its own has is no obstacle
    disk.open().close();
}

#[test]
fn a_directory_that_cannot_be_written_to_is_named() {
    let mut disk = Disk::new();
    // nobody can create files there, not even root
    disk.settings.dir = Path::new("/proc/self/weir-data").into();
    let error = refused(&disk).to_string();
    assert!(error.contains("cannot create /proc/self/weir-data"), "{error}");
    let file = disk.dir.path().join("file");
    fs::write(&file, "").expect("a file");
    disk.settings.dir = file;
    assert!(refused(&disk).to_string().contains("cannot create"));
}

/// Files that are open can still be written, so that only a look at the directory tells.
#[test]
fn a_directory_that_goes_away_is_noticed_and_used_again_when_it_is_back() {
    let disk = Disk::new();
    let opened = disk.open();
    let available = |expected: u64| {
        until("the state of the disk", || opened.metric("weir.disk.available") == expected);
    };
    opened.take("v", 3);
    opened.written();
    let (dir, aside) = (&disk.settings.dir, disk.dir.path().join("aside"));
    fs::rename(dir, &aside).expect("it is moved");
    available(0);
    // decisions go on in memory, and nothing is taken for written
    opened.take("v", 4);
    until("a change that is not written", || opened.metric("weir.disk.pending") == 1);
    // another directory in its place is not the one that weir has locked
    fs::create_dir(dir).expect("another one");
    fs::write(dir.join("lock"), "").expect("a file");
    opened.take("w", 1);
    until("two changes that are not written", || opened.metric("weir.disk.pending") == 2);
    assert_eq!(opened.metric("weir.disk.available"), 0);
    fs::remove_dir_all(dir).expect("it is removed");
    fs::rename(&aside, dir).expect("it is put back");
    available(1);
    opened.close();
    let opened = disk.open();
    assert_eq!((opened.hits("v"), opened.hits("w")), (7, 1));
    fs::remove_dir_all(dir).expect("it is removed");
    until("the state of the disk", || opened.metric("weir.disk.available") == 0);
    assert!(opened.metric("weir.disk.write_failures") > 0);
    assert_eq!(opened.hits("v"), 7);
}
