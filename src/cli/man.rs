//! `weir man`: manual pages, made of the same texts as `--help`.

use std::{fs, io, path::PathBuf};

use clap::{Args, Command};
use clap_mangen::roff::{Roff, roman};

const SOURCE: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Directory of the pages. It is created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

// === impl Man ===

impl Man {
    /// Writes `weir.1`, and `weir-COMMAND.1` for each command.
    pub(super) fn write(&self, program: Command) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        let mut program = program.disable_help_subcommand(true);
        program.build();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            self.write_page(command)?;
        }
        self.write_page(&program)
    }

    fn write_page(&self, command: &Command) -> io::Result<()> {
        let page = clap_mangen::Man::new(command.clone()).source(SOURCE);
        let mut file = Vec::new();
        page.render_title(&mut file)?;
        page.render_name_section(&mut file)?;
        page.render_synopsis_section(&mut file)?;
        page.render_description_section(&mut file)?;
        page.render_options_section(&mut file)?;
        if command.has_subcommands() {
            page.render_subcommands_section(&mut file)?;
        }
        let after = command.get_after_long_help().or_else(|| command.get_after_help());
        let after = after.map(ToString::to_string).unwrap_or_default();
        for part in after.split("\n\n").filter(|part| !part.is_empty()) {
            section(part).to_writer(&mut file)?;
        }
        fs::write(self.dir.join(page.get_filename()), file)
    }
}

/// The first word is the title. The lines are tables and examples, so they are not filled.
fn section(part: &str) -> Roff {
    let mut roff = Roff::new();
    let mut lines = part.lines().peekable();
    let title: String = part.chars().take_while(char::is_ascii_alphabetic).collect();
    roff.control("SH", [title.to_uppercase().as_str()]);
    roff.control("nf", []);
    lines.next_if(|line| line.strip_suffix(':') == Some(&title));
    lines.for_each(|line| {
        roff.text([roman(line)]);
    });
    roff.control("fi", []);
    roff
}
