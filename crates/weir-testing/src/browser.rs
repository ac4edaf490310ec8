//! A headless Chromium, driven by the protocol of `WebDriver` over plain HTTP.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::{Ipv4Addr, SocketAddr},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    http::{self, HttpRequest},
    repository,
    wait::DEADLINE,
};

/// The installed version of the package that carries axe; the Makefile has the same.
const AXE_VERSION: &str = "0.1.8";

/// The names of keys, as `WebDriver` has them.
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";
pub const DOWN: &str = "\u{e015}";
pub const TAB: &str = "\u{e004}";

/// A browser with one page, ended on drop.
pub struct Browser {
    driver: Driver,
    session: String,
}

/// The process that drives browsers.
struct Driver {
    child: Child,
    port: u16,
    /// Open, so that it can write.
    _output: BufReader<ChildStdout>,
}

// === impl Browser ===

impl Browser {
    /// Starts chromedriver on a free port, and a Chromium.
    pub fn start() -> Self {
        let driver = Driver::start();
        // a container's root has no sandbox, and little shared memory
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
        ];
        let options = json!({ "args": arguments });
        let wanted = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let capabilities = json!({ "capabilities": { "alwaysMatch": wanted } });
        let answer = driver.send(HttpRequest::post("/session", capabilities.to_string()));
        let session = answer["sessionId"].as_str().expect("the name of a session").to_owned();
        Self { driver, session }
    }

    fn command(&self, path: &str, body: &Value) -> Value {
        self.driver.send(HttpRequest::post(&format!("/session/{}{path}", self.session), body.to_string()))
    }

    fn query(&self, path: &str) -> Value {
        self.driver.send(HttpRequest::get(&format!("/session/{}{path}", self.session)))
    }

    /// Sends a command of Chromium's own protocol.
    fn developer_command(&self, name: &str, parameters: &Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": name, "params": parameters }))
    }

    /// Loads an address anew, also if only its fragment differs from the present one.
    pub fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": "about:blank" }));
        self.command("/url", &json!({ "url": url }));
    }

    /// Opens another window, which then is the present one.
    pub fn open_window(&self, url: &str) {
        self.open_new("window");
        self.open(url);
    }

    /// Opens an empty tab in front of the present one, which then is hidden.
    pub fn open_tab(&self) {
        self.open_new("tab");
    }

    fn open_new(&self, kind: &str) {
        let window = self.command("/window/new", &json!({ "type": kind }));
        self.switch_to(window["handle"].as_str().expect("its name"));
    }

    /// Returns the names of all windows.
    pub fn windows(&self) -> Vec<String> {
        let names = self.query("/window/handles");
        let names = names.as_array().expect("a list").iter();
        names.map(|name| name.as_str().expect("a name").to_owned()).collect()
    }

    pub fn switch_to(&self, window: &str) {
        self.command("/window", &json!({ "handle": window }));
    }

    /// Lets the window have this size, in pixels of CSS.
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.developer_command("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Lets the system have this theme: `light` or `dark`.
    pub fn theme(&self, theme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.developer_command("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Returns what the body of a function returns, with `arguments` as its `arguments`.
    pub fn run(&self, body: &str, arguments: &[Value]) -> Value {
        self.command("/execute/sync", &json!({ "script": body, "args": arguments }))
    }

    /// Waits until the expression is true.
    pub fn until(&self, expression: &str) {
        let body = format!("return Boolean({expression})");
        let late = Instant::now() + DEADLINE;
        while self.run(&body, &[]) != true {
            assert!(Instant::now() < late, "not in time: {expression}\n{}", self.text("body"));
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the page shows the text.
    pub fn until_text(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Returns the text that the element shows.
    pub fn text(&self, selector: &str) -> String {
        let text =
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", &[json!(selector)]);
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks the element as a person would: it must be seen.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.command(&format!("/element/{element}/click"), &json!({}));
    }

    /// Types into the element.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.command(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Presses keys, wherever the focus is.
    pub fn press(&self, keys: &str) {
        let presses = keys.chars().flat_map(|key| {
            ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key.to_string() }))
        });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": presses.collect::<Vec<_>>() });
        self.command("/actions", &json!({ "actions": [keyboard] }));
    }

    fn element(&self, selector: &str) -> String {
        let found = self.command("/element", &json!({ "using": "css selector", "value": selector }));
        let names = found.as_object().and_then(|element| element.values().next()).and_then(Value::as_str);
        names.unwrap_or_else(|| panic!("no element {selector}: {found}")).to_owned()
    }

    /// Returns what the browser has warned of since the last call: errors of scripts, answers that failed, what the
    /// content security policy forbade.
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.command("/se/log", &json!({ "type": "browser" }));
        let entries = entries.as_array().expect("a list").iter();
        let is_serious = |entry: &&Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        entries.filter(is_serious).map(|entry| entry["message"].to_string()).collect()
    }

    /// Returns the faults that axe finds on the page, each with its elements.
    pub fn accessibility_faults(&self) -> Vec<String> {
        let name = format!("target/tools/axe-{AXE_VERSION}/axe_playwright_python/axe.min.js");
        let axe = fs::read_to_string(repository(&name))
            .unwrap_or_else(|error| panic!("{name}: {error}: `make tools` installs it"));
        self.run(&axe, &[]);
        let body = "const done = arguments[0];
            const inWords = ({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map(({ html }) => html).join(', ')}`;
            axe.run(document, { resultTypes: ['violations'] })
                .then(({ violations }) => done(violations.map(inWords)), (error) => done([String(error)]))";
        let faults = self.command("/execute/async", &json!({ "script": body, "args": [] }));
        let faults = faults.as_array().expect("a list").iter();
        faults.map(|fault| fault.as_str().expect("a sentence").to_owned()).collect()
    }

    /// Returns a picture of the window, as PNG.
    pub fn picture(&self) -> Vec<u8> {
        let text = self.query("/screenshot");
        from_base64(text.as_str().expect("text"))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromium does not end with its driver; a panic here would hide the test's own
        let request = HttpRequest::delete(&format!("/session/{}", self.session));
        let _ =
            http::try_send(self.driver.address(), &request.to(&format!("127.0.0.1:{}", self.driver.port)));
    }
}

// === impl Driver ===

impl Driver {
    fn start() -> Self {
        // one that finds its port taken for IPv6 ends at once
        (0..5).find_map(|_| Self::try_start()).expect("chromedriver tells its port")
    }

    fn try_start() -> Option<Self> {
        let mut child = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start chromedriver: {error}: `make tools` installs it"));
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let port = output.by_ref().lines().map_while(Result::ok).find_map(|line| {
            line.strip_prefix("ChromeDriver was started successfully on port ")?
                .trim_end_matches('.')
                .parse()
                .ok()
        });
        let driver = Self { child, port: port.unwrap_or_default(), _output: output };
        // dropped, it is killed
        port.is_some().then_some(driver)
    }

    /// Returns the `value` of the answer.
    fn send(&self, request: HttpRequest) -> Value {
        let request = request.to(&format!("127.0.0.1:{}", self.port));
        let mut answer: Value =
            serde_json::from_str(&http::send(self.address(), &request).body).expect("JSON");
        let value = answer["value"].take();
        assert!(value["error"].is_null(), "{}: {} after {request:?}", value["error"], value["message"]);
        value
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // it may have ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |digit: u8| match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let bytes = |four: &[u8]| {
        let bits =
            four.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit)) << (6 * (4 - four.len()));
        bits.to_be_bytes().into_iter().skip(1).take(four.len() - 1).collect::<Vec<u8>>()
    };
    digits.chunks(4).flat_map(bytes).collect()
}
