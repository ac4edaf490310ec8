//! A mounted ConfigMap, written and updated as the kubelet does.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// A folder with the files of a ConfigMap: links to `..data`, which is a link to the folder of a version.
pub(crate) struct ConfigMap {
    folder: PathBuf,
    version: u32,
}

// === impl ConfigMap ===

impl ConfigMap {
    /// Mounts `data`, a ConfigMap's files by name, in a new folder.
    pub(crate) fn mount(folder: &Path, data: &Value) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let mut map = Self { folder: folder.to_owned(), version: 0 };
        map.update(data);
        map
    }

    /// Replaces all files at once: writes the new version, renames the link to it over the old one, corrects the
    /// visible links, and removes the old version.
    pub(crate) fn update(&mut self, data: &Value) {
        let data = data.as_object().expect("files");
        let in_folder = |name: &str| self.folder.join(name);
        let old = fs::read_link(in_folder("..data")).ok();
        self.version += 1;
        let new = format!("..2026_11_22_05_00_00.{}", self.version);
        fs::create_dir(in_folder(&new)).expect("a folder");
        for (name, text) in data {
            fs::write(in_folder(&new).join(name), text.as_str().expect("text")).expect("a file");
        }
        symlink(&new, in_folder("..data_tmp")).expect("a link");
        fs::rename(in_folder("..data_tmp"), in_folder("..data")).expect("a rename");
        for name in data.keys().filter(|name| !in_folder(name).is_symlink()) {
            symlink(Path::new("..data").join(name), in_folder(name)).expect("a link");
        }
        for file in fs::read_dir(&self.folder).expect("the folder") {
            let name = file.expect("a file").file_name().into_string().expect("UTF-8");
            if !name.starts_with("..") && !data.contains_key(&name) {
                fs::remove_file(in_folder(&name)).expect("a removal");
            }
        }
        if let Some(old) = old {
            fs::remove_dir_all(self.folder.join(old)).expect("a removal");
        }
    }
}
