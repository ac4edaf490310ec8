//! `weir completions`: scripts for shells.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

pub(super) const EXAMPLES: &str = "\
Examples:
  weir completions bash > /etc/bash_completion.d/weir
  weir completions zsh > \"${fpath[1]}/_weir\"
  weir completions fish > ~/.config/fish/completions/weir.fish";

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Shell to complete in
    #[arg(value_enum)]
    shell: Shell,
}

// === impl Completions ===

impl Completions {
    pub(super) fn print(&self, command: &mut Command, out: &mut impl Write) -> io::Result<()> {
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        // it panics if it cannot write, which a buffer in memory always can
        clap_complete::generate(self.shell, command, name, &mut script);
        out.write_all(&script)
    }
}
