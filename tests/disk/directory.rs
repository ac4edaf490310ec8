//! Directories that cannot be used, and what users are told.

use std::{fs, path::Path};

use weir::store::disk::DiskError;

use crate::{
    child::{run, stderr},
    support::Disk,
};

fn refused(disk: &Disk) -> DiskError {
    disk.try_open().err().expect("it cannot be used")
}

#[test]
fn a_second_process_is_refused() {
    let disk = Disk::new();
    let opened = disk.open();
    opened.take("v", 1);
    let error = refused(&disk);
    assert!(matches!(error, DiskError::InUse(_)), "{error}");
    let dir = disk.settings.dir.to_str().expect("a plain path");
    let rules = disk.dir.path().join("rules");
    fs::create_dir(&rules).expect("a directory");
    fs::write(rules.join("d.yaml"), "domain: d\n").expect("a file");
    let output = run(
        &["serve", "--config", rules.to_str().expect("a plain path"), "--grpc-port", "0", "--port", "0"],
        &[("BACKEND_TYPE", "disk"), ("WEIR_DATA_DIR", dir)],
    );
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(said.contains(dir) && said.contains("in use by another process"), "{said}");
    // the first one is not disturbed
    opened.written();
    opened.close();
    assert_eq!(disk.open().hits("v"), 1);
}

#[test]
fn a_newer_format_is_refused() {
    let disk = Disk::new();
    disk.open().close();
    let format = disk.settings.dir.join("format");
    assert_eq!(fs::read_to_string(&format).expect("the format"), "weir data 2\n");
    fs::write(&format, "weir data 3\n").expect("a newer format");
    let error = refused(&disk);
    assert!(matches!(error, DiskError::Newer { found: 3, supported: 2, .. }), "{error}");
    assert!(error.to_string().contains("have format 3, and this version of weir reads format 2"), "{error}");
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

#[test]
fn settings_of_the_disk_are_checked() {
    for (variables, expected) in [
        (&[("BACKEND_TYPE", "disk")][..], "WEIR_DATA_DIR must be the directory of the data"),
        (&[("WEIR_DATA_DIR", "/x"), ("WEIR_DISK_SYNC", "often")], "always or interval or os"),
        (&[("WEIR_DATA_DIR", "/x"), ("WEIR_DISK_DAMAGE", "ignore")], "refuse or continue"),
        (&[("WEIR_DATA_DIR", "/x"), ("WEIR_DISK_MAX_BYTES", "1MiB")], "at least 256MiB"),
    ] {
        let output = run(&["serve"], variables);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}
