//! A library that is loaded before the C library, and keeps what a power failure would leave: the contents of files at
//! their last `fsync` or `fdatasync`, and the names in directories at theirs. `SYNCED_DIR` says where; `SYNCED_ROOT` is
//! the directory whose files matter. It is compiled by the test, without cargo.
//!
//! A file has the key `<inode>-<time of birth>`, since inodes are used again. `SYNCED_DIR/<key>` has its contents, or
//! the lines `<key> <name>` of a directory.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fs::{self, File, Metadata},
    io::{self, Read},
    mem::ManuallyDrop,
    os::{
        fd::FromRawFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
    time::UNIX_EPOCH,
};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// `RTLD_NEXT` of glibc and musl.
const NEXT: *mut c_void = -1_isize as *mut c_void;

type Sync = unsafe extern "C" fn(c_int) -> c_int;

struct Shadow {
    dir: PathBuf,
    root: PathBuf,
}

fn shadow() -> Option<&'static Shadow> {
    static SHADOW: OnceLock<Option<Shadow>> = OnceLock::new();
    let get = |name| std::env::var_os(name).map(PathBuf::from);
    SHADOW.get_or_init(|| Some(Shadow { dir: get("SYNCED_DIR")?, root: get("SYNCED_ROOT")? })).as_ref()
}

fn key(metadata: &Metadata) -> io::Result<String> {
    let born = metadata.created()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{}-{}", metadata.ino(), born.as_nanos()))
}

/// Returns the bytes that are allocated: files of the engine are written from their beginning, and the rest is zeros.
fn contents(path: &Path, metadata: &Metadata) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take((metadata.blocks() * 512).min(metadata.len())).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn names(path: &Path) -> io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // one that is removed meanwhile may be gone or not
        let Ok(metadata) = entry.metadata() else { continue };
        lines.extend_from_slice(key(&metadata)?.as_bytes());
        lines.push(b' ');
        lines.extend_from_slice(entry.file_name().as_bytes());
        lines.push(b'\n');
    }
    Ok(lines)
}

/// Keeps what is durable once the file is synced: what it has now.
fn keep(fd: c_int) -> io::Result<()> {
    static LOCK: Mutex<()> = Mutex::new(());
    let Some(Shadow { dir, root }) = shadow() else { return Ok(()) };
    let path = fs::read_link(format!("/proc/self/fd/{fd}"))?;
    if !path.starts_with(root) {
        return Ok(());
    }
    let _guard = LOCK.lock();
    // the file itself, which may have another name by now
    // SAFETY: the caller has it open, and it is not closed here
    let metadata = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) }).metadata()?;
    let kept = if metadata.is_dir() {
        names(&path)?
    } else {
        let mut kept = metadata.len().to_le_bytes().to_vec();
        kept.extend(contents(Path::new(&format!("/proc/self/fd/{fd}")), &metadata)?);
        kept
    };
    // replaced at once, since the process may be killed at any time
    let to = dir.join(key(&metadata)?);
    let new = to.with_extension("new");
    fs::write(&new, kept)?;
    fs::rename(new, to)
}

fn sync(fd: c_int, name: &CStr) -> c_int {
    if let Err(error) = keep(fd) {
        eprintln!("cannot keep what is synced: {error}");
        std::process::abort();
    }
    // SAFETY: the symbol is a function of this type
    unsafe {
        let real: Sync = std::mem::transmute(dlsym(NEXT, name.as_ptr()));
        real(fd)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    sync(fd, c"fsync")
}

#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(fd, c"fdatasync")
}
