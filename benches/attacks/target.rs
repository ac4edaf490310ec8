//! The weir under attack.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    time::Duration,
};

use tempfile::TempDir;

use super::{child::Serving, options::Options};

/// How long an attack goes on after it has sent everything.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);

/// The longest time for one step of a client, such as a connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

const RULES: &str = "
domain: d
descriptors:
  - key: k
    rate_limit: { unit: hour, requests_per_unit: 1000000 }
";

/// A weir: one that runs, or one of this benchmark.
pub(crate) struct Target {
    pub(crate) http: String,
    pub(crate) grpc: String,
    pub(crate) debug: Option<String>,
    /// A domain with rules.
    pub(crate) domain: Option<String>,
    own: Option<(Serving, TempDir)>,
}

impl Target {
    /// Returns the running weir of `options`, or starts one with stock settings.
    pub(crate) fn of(options: &Options) -> Self {
        match (&options.http, &options.grpc) {
            (Some(http), Some(grpc)) => Self {
                http: http.clone(),
                grpc: grpc.clone(),
                debug: options.debug.clone(),
                domain: options.domain.clone(),
                own: None,
            },
            _ => Self::start(&[]),
        }
    }

    /// Starts a weir with the rules of the control plane at `address`.
    pub(crate) fn with_control_plane(_: &Options, address: SocketAddr) -> Self {
        let address = address.to_string();
        Self::start(&[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &address),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ])
    }

    fn start(variables: &[(&str, &str)]) -> Self {
        let rules = tempfile::tempdir().expect("a directory");
        fs::write(rules.path().join("rules.yaml"), RULES).expect("a file");
        let weir = Serving::start(rules.path().to_str().expect("a path in UTF-8"), variables);
        let address = |server| weir.address(server).to_owned();
        Self {
            http: address("http"),
            grpc: address("grpc"),
            debug: Some(address("debug")),
            domain: Some("d".to_owned()),
            own: Some((weir, rules)),
        }
    }

    /// Returns the process, if it is one of this benchmark.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.own.as_ref().map(|(weir, _)| weir.pid())
    }
}

/// Connects to `address`.
pub(crate) fn connect(address: &str) -> io::Result<TcpStream> {
    let mut addresses = address.to_socket_addrs()?;
    let address = addresses.next().ok_or_else(|| io::Error::other("the name has no address"))?;
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Gets a page, headers included.
pub(crate) fn get(address: &str, path: &str) -> io::Result<String> {
    let mut stream = connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n")?;
    let mut page = Vec::new();
    stream.read_to_end(&mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
