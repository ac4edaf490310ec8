//! Counts instructions with valgrind: each case runs in a process of its own, of which only what `measured` calls is
//! counted.

use std::{env, hint::black_box, process::Command};

/// What is counted. What it makes and what it needs is dropped later.
pub type Work = Box<dyn FnMut()>;

/// Cases of one kind, with what prepares the one of a name.
pub struct Group {
    pub name: &'static str,
    pub prepare: fn(&str) -> Work,
    pub cases: &'static [&'static str],
}

/// The case without work, whose instructions are those of counting. They are subtracted from those of all others.
const NOTHING: Group =
    Group { name: "nothing", prepare: |_| Box::new(|| assert!(black_box(true))), cases: &["at_all"] };

/// The argument before the name of the case that a process runs.
pub const RUN: &str = "--run";

/// Does the work that is counted.
#[inline(never)]
fn measured(work: &mut Work) {
    black_box(work)();
}

/// Returns the names of all cases, and the instructions of each. In a process that is to run one case, runs it, and
/// returns nothing.
pub fn counts(groups: &[Group], filter: &str) -> impl Iterator<Item = Result<(String, u64), String>> {
    let own = own_case();
    if let Some(name) = &own {
        let (group, case) = name.split_once('/').expect("a name of a group and a case");
        let group = groups.iter().chain([&NOTHING]).find(|known| known.name == group).expect("a known group");
        measured(&mut (group.prepare)(case));
    }
    let nothing = if own.is_none() { count("nothing/at_all") } else { Ok(0) };
    let names = groups
        .iter()
        .flat_map(|group| group.cases.iter().map(move |case| format!("{}/{case}", group.name)))
        .filter(move |name| own.is_none() && name.contains(filter));
    names.map(move |name| {
        let instructions = count(&name)?.saturating_sub(nothing.clone()?);
        Ok((name, instructions))
    })
}

fn own_case() -> Option<String> {
    let mut arguments = env::args().skip(1);
    arguments.next().filter(|argument| argument == RUN).and_then(|_| arguments.next())
}

/// Returns the instructions of one case.
fn count(name: &str) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let valgrind = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--toggle-collect=*callgrind::measured*",
        ])
        .arg(program)
        .args([RUN, name])
        .output()
        .map_err(|error| format!("valgrind cannot be run: {error}"))?;
    let log = String::from_utf8_lossy(&valgrind.stderr);
    let collected = log.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    match collected {
        Some(instructions) if instructions > 0 && valgrind.status.success() => Ok(instructions),
        _ => Err(format!("valgrind has counted nothing of {name}: {log}")),
    }
}
