//! What others wrote has no effect on the terminal on which a command or a page shows it.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use crate::{
    NO_DELAY,
    child::{Serving, run, stdout},
    get, path, rules,
};

/// Ends the line, moves the cursor, reverses the text, and hides.
const HOSTILE: &str = "\r\u{1b}[2J\u{9b}2J\u{202e}\u{200b}\u{feff}";

/// Asserts that nothing in `text` but its line breaks does something.
fn assert_plain(what: &str, text: &str) {
    let acts = |c: char| c != '\n' && (c.is_control() || (!c.is_ascii() && HOSTILE.contains(c)));
    assert!(!text.contains(acts), "{what}: {text:?}");
}

#[test]
fn the_page_of_a_hostile_server_is_printed_as_text() {
    for command in ["hot", "health"] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            // what is unread when it closes would reset the connection
            let (mut request, mut part) = (Vec::new(), [0; 1_024]);
            while !request.ends_with(b"\r\n\r\n") {
                let read = client.read(&mut part).expect("a request");
                request.extend_from_slice(&part[..read]);
            }
            let body = format!("first{HOSTILE}\nsecond\n");
            write!(client, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}").expect("it reads");
        });
        let shown = stdout(&run(&[command, "--address", &address], &[]));
        server.join().expect("it has served");
        assert_plain(command, &shown);
        assert_eq!(shown, "first\\r\\u{1b}[2J\\u{9b}2J\\u{202e}\\u{200b}\\u{feff}\nsecond\n", "{command}");
    }
}

#[test]
fn names_and_values_are_shown_as_text() {
    let name: Vec<String> = HOSTILE.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    let name = name.concat();
    let dir = rules(&format!(
        "domain: shop\ndescriptors:\n- key: \"k{name}\"\n  detailed_metric: true\n  \
         rate_limit: {{name: \"n{name}\", requests: 9, per: 365d}}\n"
    ));
    let weir = Serving::start(path(&dir), &[NO_DELAY, ("LOG_LEVEL", "debug"), ("LOG_FORMAT", "json")]);
    let entry = format!("k{HOSTILE}=v{HOSTILE}");
    let call = ["call", "--address", weir.address("grpc"), "--domain", "shop"];
    for json in [&[][..], &["--json"]] {
        let shown = stdout(&run(&[&call[..], json, &[&entry]].concat(), &[]));
        assert!(shown.contains('9') && shown.contains('n'), "{shown}");
        assert_plain("call", &shown);
    }
    let config = path(&dir);
    let explain = ["explain", "--config", config, "--domain", "shop", &entry];
    assert_plain("explain", &stdout(&run(&explain, &[])));
    let check = run(&["check", "--format", "json", config], &[]);
    assert_plain("check", &stdout(&check));
    for page in ["/hot", "/stats", "/rules", "/rlconfig", "/metrics"] {
        let shown = get(weir.address("debug"), page);
        let body = shown.split_once("\r\n\r\n").map_or(&*shown, |(_, body)| body);
        assert!(body.contains("2J"), "{page}: {body}");
        assert_plain(page, body);
    }
    weir.signal("TERM");
    let (_, log) = weir.ended();
    assert!(log.contains("\"decision\"") && log.contains("\\u202e"), "{log}");
    assert_plain("the log", &log);
}
