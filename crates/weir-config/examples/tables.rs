//! Measures a table of many plans: `cargo run --release -p weir-config --example tables -- 1000000`.

use std::{
    env, fs,
    io::{BufWriter, Write as _},
    time::Instant,
};

use weir_config::{Options, load};
use weir_limit::{Entry, KeyHasher, Lookup, RuleSet};

const RULES: &str = "\
domain: d
plans: {free: {requests: 100, per: 1m}, pro: {requests: 1000, per: 1m}}
descriptors: [{key: tenant, limits_from: plans.csv, default: free}]
";

const LOOK_UPS: u32 = 1_000_000;

fn value(number: u64) -> String {
    format!("tenant-{:012}", number * 7_919)
}

/// The resident memory of this process in KiB: now, and the most so far.
fn memory() -> [u64; 2] {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ["VmRSS:", "VmHWM:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or_default()
    })
}

fn main() {
    let rows: u64 = env::args().nth(1).map_or(1_000_000, |rows| rows.parse().expect("a number of rows"));
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.yaml"), RULES).expect("a file in it");
    let mut plans = BufWriter::new(fs::File::create(dir.path().join("plans.csv")).expect("a file in it"));
    writeln!(plans, "value,plan").expect("a line");
    for row in 0..rows {
        writeln!(plans, "{},{}", value(row), if row % 2 == 0 { "free" } else { "pro" }).expect("a line");
    }
    drop(plans);
    let [before, _] = memory();

    let (options, begun) = (Options::default(), Instant::now());
    let loaded = load(dir.path(), &options).expect("valid rules");
    let rules = RuleSet::new(&loaded.domains, KeyHasher::random());
    let took = begun.elapsed();
    let ([after, most], counted) = (memory(), options.tables.memory.used());
    let of_values: usize =
        loaded.tables.iter().flat_map(|table| table.values()).map(|(value, _)| value.len()).sum();
    println!(
        "{rows} rows in {took:?}; {counted} bytes, {of_values} of them values; resident KiB: {before} before, {after} after, {most} at most"
    );

    let names: Vec<String> = (0..u64::from(LOOK_UPS)).map(|i| value(i * 7_919_333 % rows.max(1))).collect();
    let begun = Instant::now();
    let is_found =
        |name: &&String| matches!(rules.find("d", &[Entry { key: "tenant", value: name }]), Lookup::Rule(_));
    let found = names.iter().filter(is_found).count();
    println!("{:?} for each of {found} look-ups", begun.elapsed() / LOOK_UPS);

    let begun = Instant::now();
    drop((rules, loaded));
    println!("freed in {:?}", begun.elapsed());
}
