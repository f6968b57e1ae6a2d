//! `nrlc new`: a folder with a recipe that runs.
//!
//! In: a name. Out: a new folder with a commented recipe, a README, a workflow that checks it, and what git
//! ignores. A folder that is there already is refused, and nothing is written.

use std::path::Path;
use std::process::ExitCode;

/// Makes a folder with a small recipe to start from
#[derive(clap::Args, Debug)]
pub struct NewArgs {
    /// Name of the folder and of the recipe
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Files and their texts; `NAME` stands for the recipe's name.
const FILES: [(&str, &str); 4] = [
    ("NAME.nrl", include_str!("new/recipe.nrl")),
    ("README.md", include_str!("new/README.md")),
    (".gitignore", "/runs/\n"),
    (".github/workflows/check.yml", include_str!("new/check.yml")),
];

/// Runs the command; 2 if the name cannot be used, 1 if the folder cannot be written.
pub fn run(args: &NewArgs) -> ExitCode {
    let folder = Path::new(&args.name);
    let Some(name) = recipe_name(folder) else {
        eprintln!(
            "error: `{}` does not name a recipe: letters, digits, `_` and `-`, a letter first",
            args.name
        );
        return ExitCode::from(2);
    };
    if folder.exists() {
        eprintln!("error: {} is there already; choose another name", folder.display());
        return ExitCode::from(2);
    }
    for (path, text) in FILES {
        let path = folder.join(path.replace("NAME", &name));
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, text.replace("NAME", &name)));
        if let Err(e) = written {
            eprintln!("error: cannot write {}: {e}", path.display());
            return ExitCode::from(1);
        }
    }
    println!(
        "made {}: go on with `cd {} && nrlc check {name}.nrl`",
        folder.display(),
        folder.display()
    );
    ExitCode::SUCCESS
}

/// The folder's last part as a name of the language.
fn recipe_name(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_str()?.replace('-', "_");
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic());
    // Words of the language, and the functions of the recipe.
    let free = !nrl_ide::words::RESERVED.contains(&name.as_str())
        && !["problem", "places", "sample"].contains(&name.as_str());
    (plain && starts && free).then_some(name)
}
