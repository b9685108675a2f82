//! `oncebox completions` and `oncebox man`: what a shell and `man` know of the commands.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell: bash, elvish, fish, powershell or zsh.
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder for one page per command, made when it is not there; the page of `oncebox` itself is printed unless set.
    folder: Option<PathBuf>,
}

/// Prints a script for the shell.
pub(crate) fn completions(command: &clap::Command, options: &Completions) -> Result<bool, String> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut public(command), "oncebox", &mut script);
    print(&script)
}

/// Prints a page, or writes them all.
pub(crate) fn man(command: &clap::Command, options: &Man) -> Result<bool, String> {
    let command = public(command);
    match &options.folder {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .map_err(|error| format!("the page cannot be made: {error}"))?;
            print(&page)
        }
        Some(folder) => write(command, folder).map_err(|error| {
            format!("the pages cannot be written to `{}`: {error}; name a folder of yours", folder.display())
        }),
    }
}

fn write(command: clap::Command, folder: &Path) -> std::io::Result<bool> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)?;
    Ok(true)
}

/// The commands that are for people.
fn public(command: &clap::Command) -> clap::Command {
    let commands = command.get_subcommands().filter(|one| !one.is_hide_set()).cloned();
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new("oncebox").version(env!("CARGO_PKG_VERSION")).about(about).subcommands(commands)
}

/// Writes to stdout; not an error when nobody reads it.
pub(crate) fn print(bytes: &[u8]) -> Result<bool, String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(true),
        Err(error) => Err(format!("standard output: {error}")),
    }
}
