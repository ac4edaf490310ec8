//! Commands about the connection: `PING`, `ECHO`, `AUTH`, `HELLO`, `CLIENT`, `SELECT`, `QUIT`.

use std::time::Instant;

use super::{action::ClientCommand, info::COMPATIBLE_VERSION};
use crate::{
    bounds::Bound,
    resp::{
        arguments::{integer, is_word},
        auth::DEFAULT_USER,
        reply::{CommandReplies, quoted},
        service::Service,
        session::Session,
    },
};

const MAX_NAME: usize = 256;

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_AUTH: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
                       <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";
const NAME: &str = "ERR names have at most 256 bytes, without spaces, newlines or special characters";
const SYNTAX: &str = "ERR syntax error";

pub(super) fn carry_out<S>(
    service: &Service<S>,
    session: &mut Session,
    command: ClientCommand,
    arguments: &[&[u8]],
    replies: &mut CommandReplies,
) {
    match command {
        ClientCommand::Ping => match arguments {
            [] => replies.simple("PONG"),
            [text, ..] => replies.bulk(text),
        },
        ClientCommand::Echo => replies.bulk(arguments[0]),
        ClientCommand::Auth => {
            let (user, password) = match arguments {
                [user, password] => (*user, *password),
                _ => (DEFAULT_USER.as_bytes(), arguments[0]),
            };
            match authenticate(service, session, user, password) {
                Ok(()) => replies.simple("OK"),
                Err(error) => replies.error(error),
            }
        }
        ClientCommand::Hello => hello(service, session, arguments, replies),
        ClientCommand::Client => client(session, arguments, replies),
        ClientCommand::Select => match integer::<i64>(arguments[0]) {
            Some(_) => replies.simple("OK"),
            None => replies.error("ERR invalid DB index"),
        },
        ClientCommand::Quit => {
            session.is_closing = true;
            replies.simple("OK");
        }
        ClientCommand::Unwatch => replies.simple("OK"),
    }
}

fn authenticate<S>(
    service: &Service<S>,
    session: &mut Session,
    user: &[u8],
    password: &[u8],
) -> Result<(), &'static str> {
    let Some(auth) = &service.settings.auth else {
        return Err(
            "ERR AUTH <password> called without any password configured for the default user: WEIR_REDIS_AUTH is not set",
        );
    };
    if auth.admits(user, password) {
        session.is_authenticated = true;
        return Ok(());
    }
    service.stats.auth_failed.add(1);
    if session.add_wrong_password() {
        service.connections.exceeded().add(Bound::WrongPasswords);
    }
    if let Some(suppressed) = service.auth_failed.admit(Instant::now()) {
        tracing::warn!(suppressed, "a client of the port of Redis' protocol gave a wrong user or password");
    }
    Err(WRONG_PASSWORD)
}

/// Carries out `HELLO [version [AUTH user password] [SETNAME name]]`. Changes nothing unless all of it is right.
fn hello<S>(service: &Service<S>, session: &mut Session, arguments: &[&[u8]], replies: &mut CommandReplies) {
    let mut version = if replies.is_resp3 { 3 } else { 2 };
    let mut rest = arguments;
    if let [given, more @ ..] = rest {
        version = match integer::<i64>(given) {
            Some(version @ (2 | 3)) => version,
            Some(_) => return replies.error("NOPROTO unsupported protocol version"),
            None => return replies.error("ERR Protocol version is not an integer or out of range"),
        };
        rest = more;
    }
    let mut name = None;
    loop {
        rest = match rest {
            [] => break,
            [word, user, password, more @ ..] if is_word(word, "AUTH") => {
                if let Err(error) = authenticate(service, session, user, password) {
                    return replies.error(error);
                }
                more
            }
            [word, given, more @ ..] if is_word(word, "SETNAME") => {
                if !is_name(given) {
                    return replies.error(NAME);
                }
                name = Some(given.to_vec());
                more
            }
            [other, ..] => {
                return replies.error(&format!("ERR Syntax error in HELLO option '{}'", quoted(other)));
            }
        };
    }
    if !session.is_authenticated {
        return replies.error(NO_AUTH);
    }
    if let Some(name) = name {
        session.name = name;
    }
    replies.is_resp3 = version == 3;
    replies.map(7);
    for (key, value) in [("server", "weir"), ("version", COMPATIBLE_VERSION)] {
        replies.bulk(key);
        replies.bulk(value);
    }
    replies.bulk("proto");
    replies.integer(version);
    replies.bulk("id");
    replies.integer(i64::try_from(session.id).unwrap_or(i64::MAX));
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(key);
        replies.bulk(value);
    }
    replies.bulk("modules");
    replies.array(0);
}

fn client(session: &mut Session, arguments: &[&[u8]], replies: &mut CommandReplies) {
    let [command, rest @ ..] = arguments else { return };
    let is = |word| is_word(command, word);
    match rest {
        [name] if is("SETNAME") => {
            if !is_name(name) {
                return replies.error(NAME);
            }
            session.name = name.to_vec();
            replies.simple("OK");
        }
        [] if is("GETNAME") => match &session.name[..] {
            [] => replies.null(),
            name => replies.bulk(name),
        },
        [] if is("ID") => replies.integer(i64::try_from(session.id).unwrap_or(i64::MAX)),
        [] if is("INFO") || is("LIST") => replies.text(&describe(session, replies.is_resp3)),
        [attribute, value] if is("SETINFO") => {
            let index = match attribute {
                attribute if is_word(attribute, "LIB-NAME") => 0,
                attribute if is_word(attribute, "LIB-VER") => 1,
                other => {
                    return replies.error(&format!("ERR Unrecognized option '{}'", quoted(other)));
                }
            };
            if !is_name(value) {
                return replies.error(NAME);
            }
            session.client_library[index] = value.to_vec();
            replies.simple("OK");
        }
        [switch] if is("NO-EVICT") || is("NO-TOUCH") => {
            if is_word(switch, "ON") || is_word(switch, "OFF") {
                replies.simple("OK");
            } else {
                replies.error(SYNTAX);
            }
        }
        [switch] if is("REPLY") && is_word(switch, "ON") => replies.simple("OK"),
        _ => replies.error(&format!(
            "ERR unknown subcommand or wrong number of arguments for '{}': CLIENT has GETNAME, ID, INFO, LIST, NO-EVICT, NO-TOUCH, \
             REPLY ON, SETINFO and SETNAME",
            quoted(command)
        )),
    }
}

/// Describes this connection, the only one that a client may see.
fn describe(session: &Session, is_resp3: bool) -> String {
    let text = String::from_utf8_lossy;
    format!(
        "id={} name={} db=0 lib-name={} lib-ver={} resp={}\n",
        session.id,
        text(&session.name),
        text(&session.client_library[0]),
        text(&session.client_library[1]),
        if is_resp3 { 3 } else { 2 }
    )
}

fn is_name(name: &[u8]) -> bool {
    name.len() <= MAX_NAME && name.iter().all(|byte| (b'!'..=b'~').contains(byte))
}
