//! `COMMAND`, by which clients find out which commands there are.

use super::table::{COMMANDS, CommandSpec, find};
use crate::resp::{
    arguments::is_word,
    reply::{CommandReplies, quoted},
};

pub(super) fn carry_out(arguments: &[&[u8]], replies: &mut CommandReplies) {
    match arguments {
        [] => write_all(COMMANDS.iter().map(Some), replies, write),
        [word] if is_word(word, "COUNT") => replies.integer(COMMANDS.iter().map(|_| 1).sum()),
        [word] if is_word(word, "LIST") => {
            replies.array(COMMANDS.len());
            for spec in &COMMANDS {
                replies.bulk(spec.name);
            }
        }
        [word] if is_word(word, "INFO") => write_all(COMMANDS.iter().map(Some), replies, write),
        [word, names @ ..] if is_word(word, "INFO") => {
            write_all(names.iter().map(|name| find(name).map(|index| &COMMANDS[index])), replies, write);
        }
        [word, names @ ..] if is_word(word, "DOCS") => {
            let found = names.iter().filter_map(|name| find(name)).map(|index| &COMMANDS[index]);
            let all: Vec<&CommandSpec> = if names.is_empty() { COMMANDS.iter().collect() } else { found.collect() };
            replies.map(all.len());
            for spec in all {
                write_docs(spec, replies);
            }
        }
        [word, ..] => replies.error(&format!(
            "ERR unknown subcommand or wrong number of arguments for '{}': COMMAND has COUNT, DOCS, INFO and LIST",
            quoted(word)
        )),
    }
}

fn write_all<'a>(
    specs: impl ExactSizeIterator<Item = Option<&'a CommandSpec>>,
    replies: &mut CommandReplies,
    write: impl Fn(&CommandSpec, &mut CommandReplies),
) {
    replies.array(specs.len());
    for spec in specs {
        match spec {
            Some(spec) => write(spec, replies),
            None => replies.null_array(),
        }
    }
}

/// Writes the name, arity, flags, and which arguments are keys.
fn write(spec: &CommandSpec, replies: &mut CommandReplies) {
    let (least, most) = (*spec.arguments.start(), *spec.arguments.end());
    let arity = i64::try_from(least + 1).unwrap_or(i64::MAX);
    let takes_any = most == usize::MAX;
    replies.array(6);
    replies.bulk(spec.name);
    replies.integer(if least == most { arity } else { -arity });
    replies.set(2);
    replies.simple(if spec.action.is_readonly() { "readonly" } else { "write" });
    replies.simple("fast");
    let (first_key, last_key) = match (spec.action.has_key(), takes_any) {
        (false, _) => (0, 0),
        (true, false) => (1, 1),
        (true, true) => (1, -1),
    };
    replies.integer(first_key);
    replies.integer(last_key);
    replies.integer(first_key);
}

fn write_docs(spec: &CommandSpec, replies: &mut CommandReplies) {
    replies.bulk(spec.name);
    replies.map(2);
    replies.bulk("summary");
    replies.bulk(spec.summary);
    replies.bulk("group");
    replies.bulk(if spec.action.has_key() { "rate limiting" } else { "connection" });
}
