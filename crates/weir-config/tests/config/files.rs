//! Tests directories of rule files.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tempfile::TempDir;
use weir_config::{Loaded, Options};
use weir_testing::repository;

fn dir(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    }
    dir
}

fn load(dir: &Path) -> Loaded {
    weir_config::load(dir, &Options::default()).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Returns the errors, without the directory's name.
fn errors(dir: &Path, options: &Options) -> Vec<String> {
    let errors = weir_config::load(dir, options).expect_err("errors");
    let prefix = format!("{}/", dir.display());
    errors.errors.iter().map(|error| error.to_string().replace(&prefix, "")).collect()
}

fn names(loaded: &Loaded) -> Vec<&str> {
    loaded.domains.iter().map(|domain| domain.name.as_str()).collect()
}

fn merge() -> Options {
    Options { merge_domains: true, ..Options::default() }
}

#[test]
fn every_file_is_read_in_the_order_of_paths() {
    let dir =
        dir(&[("z.yaml", "domain: z"), ("a", "domain: a"), ("m/b", "domain: b"), ("m/n/c.yml", "domain: c")]);
    let loaded = load(dir.path());
    assert_eq!((names(&loaded), loaded.files), (vec!["a", "b", "c", "z"], 4));
}

#[test]
fn links_are_ordered_by_their_own_names() {
    let dir = dir(&[("rules/2.yaml", "domain: two"), ("away/a", "domain: three"), ("away/z", "domain: one")]);
    symlink("../away/z", dir.path().join("rules/1.yaml")).expect("a link");
    symlink("../away/a", dir.path().join("rules/3.yaml")).expect("a link");
    assert_eq!(names(&load(&dir.path().join("rules"))), ["one", "two", "three"]);
}

#[test]
fn one_invalid_file_rejects_all_files_and_every_error_is_reported() {
    let dir = dir(&[
        ("a.yaml", "domain: a"),
        ("b.yaml", "domain:\n"),
        ("c.yaml", "domain: c\nfoo: 1\nbar: 2\n"),
        ("d.yaml", ""),
    ]);
    let errors = errors(dir.path(), &Options::default());
    let starts = [
        "b.yaml:1:1: config file cannot have empty domain",
        "c.yaml:2:1: config error, unknown key 'foo'",
        "c.yaml:3:1: config error, unknown key 'bar'",
        "d.yaml: config file cannot have empty domain",
    ];
    assert_eq!(errors.len(), starts.len(), "{errors:#?}");
    for (error, start) in errors.iter().zip(starts) {
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn errors_print_one_per_line() {
    let dir = dir(&[("a.yaml", "domain: a\nx: 1\ny: 2\n")]);
    let printed = weir_config::load(dir.path(), &Options::default()).expect_err("errors").to_string();
    assert_eq!(printed.lines().count(), 2);
    assert!(printed.starts_with(&format!("{}/a.yaml:2:1: ", dir.path().display())), "{printed}");
}

#[test]
fn a_domain_in_two_files_is_an_error_unless_they_are_merged() {
    let dir = dir(&[
        ("a.yaml", "domain: d\ndescriptors: [{key: a}]"),
        ("b.yaml", "domain: d\ndescriptors: [{key: b}]"),
    ]);
    let errors = errors(dir.path(), &Options::default());
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with("b.yaml:1:9: duplicate domain 'd' in config file; the first is at a.yaml:1:9"),
        "{errors:?}"
    );

    let loaded = weir_config::load(dir.path(), &merge()).expect("rules");
    let keys: Vec<_> = loaded.domains[0].nodes.iter().map(|node| node.key.as_str()).collect();
    assert_eq!((names(&loaded), keys), (vec!["d"], vec!["a", "b"]));
}

#[test]
fn wildcards_of_merged_files_are_tried_in_the_order_of_paths() {
    let first = "domain: d\ndescriptors: [{key: k, value: a*}]";
    let second = "domain: d\ndescriptors: [{key: k, value: ab*}]";
    for (files, warnings) in
        [([("1.yaml", first), ("2.yaml", second)], 1), ([("2.yaml", first), ("1.yaml", second)], 0)]
    {
        let loaded = weir_config::load(dir(&files).path(), &merge()).expect("rules");
        // the warning that the second never matches shows which one is tried first
        assert_eq!(loaded.warnings.len(), warnings, "{files:?}");
    }
}

#[test]
fn duplicates_across_merged_files_name_both_places() {
    let text = "domain: d\ndescriptors: [{key: k, value: v}]";
    let errors = errors(dir(&[("a.yaml", text), ("b/c.yaml", text)]).path(), &merge());
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].starts_with(
            "b/c.yaml:2:15: duplicate descriptor composite key 'd.k_v'; the first is at a.yaml:2:15"
        ),
        "{errors:?}"
    );
}

#[test]
fn hidden_files_are_ignored_on_request() {
    let dir = dir(&[("a.yaml", "domain: a"), (".b.yaml", "domain: b"), (".c/d.yaml", "domain: d")]);
    assert_eq!(load(dir.path()).files, 3);
    let options = Options { ignore_dotfiles: true, ..Options::default() };
    assert_eq!(names(&weir_config::load(dir.path(), &options).expect("rules")), ["a"]);
}

/// Creates a directory as Kubernetes mounts a ConfigMap.
fn config_map(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("..2026_11_21_09_00_00.1");
    fs::create_dir(&data).expect("a directory");
    symlink("..2026_11_21_09_00_00.1", dir.path().join("..data")).expect("a link");
    for (name, text) in files {
        fs::write(data.join(name), text).expect("a file");
        symlink(Path::new("..data").join(name), dir.path().join(name)).expect("a link");
    }
    dir
}

#[test]
fn a_config_maps_files_are_read_once_under_their_visible_names() {
    let dir = config_map(&[("a.yaml", "domain: a\ndescriptors: [{key: k}]"), ("b.yaml", "domain: b")]);
    for ignore_dotfiles in [false, true] {
        let options = Options { ignore_dotfiles, ..Options::default() };
        let loaded = weir_config::load(dir.path(), &options).expect("rules");
        assert_eq!((names(&loaded), loaded.files), (vec!["a", "b"], 2));
        let origin = &loaded.domains[0].nodes[0].origin;
        assert_eq!(*origin.file, *dir.path().join("a.yaml").display().to_string());
    }
}

#[test]
fn versions_of_a_config_map_without_visible_links_are_not_read() {
    let dir = config_map(&[("a.yaml", "domain: a")]);
    for (version, text) in [("..old", "domain: a"), ("..new", "domain: [")] {
        fs::create_dir(dir.path().join(version)).expect("a directory");
        fs::write(dir.path().join(version).join("a.yaml"), text).expect("a file");
    }
    symlink("..new", dir.path().join("..data_tmp")).expect("a link");
    symlink("..gone", dir.path().join("..other_tmp")).expect("a link");
    let loaded = load(dir.path());
    assert_eq!((names(&loaded), loaded.files), (vec!["a"], 1));
}

#[test]
fn a_visible_link_to_a_file_missing_from_the_version_is_not_read() {
    let dir = config_map(&[("a.yaml", "domain: a")]);
    symlink("..data/b.yaml", dir.path().join("b.yaml")).expect("a link");
    assert_eq!(names(&load(dir.path())), ["a"]);
    // without any version the rules are lost
    fs::remove_file(dir.path().join("..data")).expect("a removal");
    let errors = errors(dir.path(), &Options::default());
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("a.yaml: error loading config file: cannot read: "), "{errors:?}");
}

#[test]
fn a_load_during_a_change_reads_one_version() {
    const FILES: [&str; 2] = ["a.yaml", "b.yaml"];
    let dir = config_map(&[("a.yaml", "domain: x"), ("b.yaml", "domain: y")]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut current = dir.path().join("..2026_11_21_09_00_00.1");
            for version in 0.. {
                let next = dir.path().join(format!("..{version}"));
                fs::create_dir(&next).expect("a directory");
                // the domains change places: files of two versions declare one of them twice
                for (i, name) in FILES.iter().enumerate() {
                    let domain = if (version + i) % 2 == 0 { "y" } else { "x" };
                    fs::write(next.join(name), format!("domain: {domain}")).expect("a file");
                }
                symlink(&next, dir.path().join("..data_tmp")).expect("a link");
                fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).expect("a rename");
                fs::remove_dir_all(&current).expect("a removal");
                current = next;
                if done.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        for _ in 0..300 {
            let loaded = weir_config::load(dir.path(), &Options::default());
            done.store(loaded.is_err(), Ordering::Relaxed);
            assert_eq!(loaded.unwrap_or_else(|errors| panic!("{errors}")).domains.len(), 2);
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_directory_of_a_config_map_is_read_through_its_visible_link() {
    let dir = config_map(&[("a.yaml", "domain: a")]);
    fs::create_dir(dir.path().join("..data/below")).expect("a directory");
    fs::write(dir.path().join("..data/below/b.yaml"), "domain: b").expect("a file");
    symlink("..data/below", dir.path().join("below")).expect("a link");
    assert_eq!(names(&load(dir.path())), ["a", "b"]);
}

#[test]
fn circular_links_are_read_once() {
    let dir = dir(&[("a/x.yaml", "domain: x"), ("b/y.yaml", "domain: y")]);
    symlink("..", dir.path().join("a/up")).expect("a link");
    symlink("../b", dir.path().join("a/b")).expect("a link");
    symlink("../a", dir.path().join("b/a")).expect("a link");
    assert_eq!(load(dir.path()).files, 2);
}

#[test]
fn a_dangling_link_is_a_warning_if_its_name_is_hidden() {
    let dir = dir(&[("a.yaml", "domain: a")]);
    let links = [
        (".#a.yaml", "user@host.4711:1763000000"),
        (".b.yaml", "gone"),
        (".c.yaml", ".c.yaml"),
        (".d.yaml", "a.yaml/below"),
        (".e.yaml", "../b.yaml"),
    ];
    for (link, target) in links {
        symlink(target, dir.path().join(link)).expect("a link");
    }
    let loaded = load(dir.path());
    assert_eq!(names(&loaded), ["a"]);
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    let expected = links.map(|(link, _)| {
        format!("{}: the link leads nowhere, so it has no effect", dir.path().join(link).display())
    });
    assert_eq!(warnings, expected);
    let options = Options { ignore_dotfiles: true, ..Options::default() };
    assert_eq!(weir_config::load(dir.path(), &options).expect("rules").warnings.len(), 0);
    // the file that it leads to may be about to come back
    symlink("gone", dir.path().join("b.yaml")).expect("a link");
    let errors = errors(dir.path(), &options);
    assert!(
        errors.len() == 1 && errors[0].contains("b.yaml: error loading config file: cannot read: "),
        "{errors:?}"
    );
}

/// A link of one's own may lead into a ConfigMap that is mounted elsewhere.
#[test]
fn a_link_to_a_config_map_without_a_version_is_an_error_through_other_links() {
    let map = config_map(&[("a.yaml", "domain: a")]);
    let dir = dir(&[("z.yaml", "domain: z")]);
    symlink(map.path(), dir.path().join("map")).expect("a link");
    let rules = dir.path().join("rules");
    fs::create_dir(&rules).expect("a directory");
    symlink("../map/a.yaml", rules.join("a.yaml")).expect("a link");
    assert_eq!(names(&load(&rules)), ["a"]);
    fs::remove_file(map.path().join("..data")).expect("a removal");
    let errors = errors(&rules, &Options::default());
    assert!(
        errors.len() == 1 && errors[0].starts_with("a.yaml: error loading config file: cannot read: "),
        "{errors:?}"
    );
    // the new version no longer has it
    fs::create_dir(map.path().join("..new")).expect("a directory");
    symlink("..new", map.path().join("..data")).expect("a link");
    assert_eq!(load(&rules).files, 0);
}

#[test]
fn sockets_and_devices_are_ignored() {
    let dir = dir(&[("a.yaml", "domain: a")]);
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).expect("a socket");
    symlink("/dev/zero", dir.path().join("zero")).expect("a link");
    assert_eq!(load(dir.path()).files, 1);
}

#[test]
fn a_missing_directory_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let gone = dir.path().join("gone");
    let errors = errors(&gone, &Options::default());
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].contains("/gone: error loading config file: cannot read the rules directory: "),
        "{errors:?}"
    );
    let file = dir.path().join("file");
    fs::write(&file, "domain: a").expect("a file");
    assert!(weir_config::load(&file, &Options::default()).is_err());
}

#[test]
fn a_directory_without_files_gives_a_warning() {
    let dir = tempfile::tempdir().expect("a directory");
    let loaded = load(dir.path());
    assert_eq!((loaded.domains.len(), loaded.files, loaded.warnings.len()), (0, 0, 1));
    assert!(loaded.warnings[0].to_string().ends_with("the directory has no files, so there are no rules"));
}

#[test]
fn the_shipped_rules_are_valid() {
    let loaded = load(&repository("config"));
    assert_eq!(names(&loaded), ["shop"]);
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}
