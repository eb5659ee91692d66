//! `tidegate up`: the main job. A folder that has no configuration yet becomes a volume; then it is served.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tidegate_daemon::Failure;
use tidegate_daemon::back::disk::is_missing;
use tidegate_daemon::front::nbd::{Address, Certificates};
use tidegate_daemon::volume;

use crate::args::{Of, Up};
use crate::config::{self, Config, File};
use crate::first_run::FirstRun;
use crate::{attach, manager, serve};

pub fn run(args: &Up) -> Result<ExitCode, Failure> {
    if args.running.stdio {
        manager::keep_stream_clean()?;
    }
    let folder = absolute(&args.dir)?;
    let path = folder.join(config::FILE_NAME);
    // Whatever is there is read, or refused; only where nothing is, something is written.
    let is_new = is_missing(&path);
    let advised = |failure| if args.running.grow { unchanged(failure) } else { failure };
    let mut file = if is_new { File::default() } else { config::read(&path).map_err(advised)? };
    let named = named(args)?;
    if file.is_plural()
        && let Some(flag) = named.of_one_volume()
    {
        let message = format!("{flag}: {} describes several volumes; change it there", path.display());
        return Err(Failure::new(crate::USAGE, message));
    }
    let configured = file.clone().in_folder(&folder).volumes.swap_remove(0);
    file.override_with(named.clone());
    let mut config = file.in_folder(&folder);
    named.reaches(&mut config);
    if let Some(address) = args.nbd.as_ref().filter(|address| address.needs_tls() && config.tls.is_none()) {
        return Err(Failure::new(crate::USAGE, format!("--nbd: {}", address.refusal())));
    }
    serve::check(&config, &args.running, &folder, &path)?;
    if is_new {
        let volume = &mut config.volumes[0];
        let first = FirstRun::begin(&folder, path, named, volume)?;
        return serve::serve(config, &args.running, Some(first), Vec::new());
    }
    serve::accept_loss(&mut config, &args.running)?;
    config.volumes.iter().try_for_each(attach::replace_blank)?;
    let notes = for_this_run(&named, &configured, &path);
    serve::serve(config, &args.running, None, notes)
}

/// What is named beside a configuration is not written down, so nothing else finds it without being told: a line for each.
fn for_this_run(named: &Named, configured: &volume::Options, path: &Path) -> Vec<String> {
    let both = [("--origin", &named.origin, &configured.origin), ("--cache", &named.cache, &configured.cache)];
    let line = |(flag, named, configured): (_, &Option<PathBuf>, &PathBuf)| {
        let (named, configured) = (named.as_ref().filter(|named| *named != configured)?.display(), configured.display());
        Some(format!("{flag} {named} is for this run only: by {}, which can be edited, it is {configured}", path.display()))
    };
    both.into_iter().filter_map(line).collect()
}

/// What the command line names, as absolute paths.
#[derive(Clone, Debug, Default)]
pub struct Named {
    pub origin: Option<PathBuf>,
    pub cache: Option<PathBuf>,
    pub nbd: Option<Address>,
    pub name: Option<String>,
    pub read_only: bool,
    pub tls: Option<Certificates>,
}

impl Named {
    /// A flag that is about a single volume, if one was given.
    pub fn of_one_volume(&self) -> Option<&'static str> {
        let flags = [
            ("--origin", self.origin.is_some()),
            ("--cache", self.cache.is_some()),
            ("--name", self.name.is_some()),
            ("--read-only", self.read_only),
        ];
        flags.into_iter().find_map(|(flag, is_there)| is_there.then_some(flag))
    }

    /// What the command line has named, further commands have to name too.
    pub fn reaches(&self, config: &mut Config) {
        for volume in &mut config.volumes {
            (volume.reach.origin, volume.reach.cache) = (self.origin.clone(), self.cache.clone());
        }
    }
}

fn named(args: &Up) -> Result<Named, Failure> {
    let nbd = match &args.nbd {
        Some(Address::Unix(path)) => Some(Address::Unix(writable("--nbd", path)?)),
        other => other.clone(),
    };
    let path = |flag, path: &Option<PathBuf>| path.as_deref().map(|path| writable(flag, path)).transpose();
    let (certificate, key) = (path("--tls-cert", &args.tls_cert)?, path("--tls-key", &args.tls_key)?);
    let client_ca = path("--tls-client-ca", &args.tls_client_ca)?;
    let tls = certificate.zip(key).map(|(certificate, key)| Certificates { certificate, key, client_ca });
    let (origin, cache) = (path("--origin", &args.origin)?, path("--cache", &args.cache)?);
    Ok(Named { origin, cache, nbd, name: args.name.clone(), read_only: args.read_only, tls })
}

/// The absolute path that config.toml is to hold.
fn writable(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    let path = absolute(path)?;
    if path.to_str().is_some() {
        return Ok(path);
    }
    let message = format!("{flag}: {} is not UTF-8, which config.toml could not hold; name it by a link", path.display());
    Err(Failure::new(crate::USAGE, message))
}

/// It may name keys.
pub const CONFIG_MODE: u32 = 0o600;

pub fn config_failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Failure::NOT_CREATED, format!("{}: {error}; name another folder with --dir", path.display()))
}

/// The configuration of a folder; where there is none, the folder's own files.
pub fn config_of(folder: &Path) -> Result<Config, Failure> {
    let path = folder.join(config::FILE_NAME);
    let file = if is_missing(&path) { File::default() } else { config::read(&path)? };
    Ok(file.in_folder(folder))
}

/// What is wrong is said already, and where. No other configuration in its place is advised: one that leaves out where the state is would forget that
/// the cache has missed writes.
pub fn unchanged(failure: Failure) -> Failure {
    if failure.code != config::EX_CONFIG {
        return failure;
    }
    Failure::new(failure.code, format!("{failure}; nothing was changed: correct it first"))
}

/// The one volume that is meant, of those that are configured.
pub fn one_of(config: &Config, of: &Of) -> Result<volume::Options, Failure> {
    match config.places(of.volume.as_deref()).map_err(|message| Failure::new(crate::USAGE, message))?[..] {
        [place] => Ok(config.volumes[place].clone()),
        _ => Err(several()),
    }
}

pub fn several() -> Failure {
    Failure::new(crate::USAGE, "there are several volumes; say which with --volume".to_owned())
}

/// Where a volume is made: its folder, its configuration if there is one, and what the command line names besides.
pub struct Place {
    pub folder: PathBuf,
    /// Of the configuration.
    pub path: PathBuf,
    pub file: File,
    pub named: Named,
    /// There is no configuration yet.
    pub is_new: bool,
}

impl Place {
    /// # Errors
    /// One line: a configuration that is wrong, or one of several volumes beside devices of one.
    pub fn new(dir: &Path, origin: Option<&Path>, cache: Option<&Path>) -> Result<Place, Failure> {
        let folder = absolute(dir)?;
        let path = folder.join(config::FILE_NAME);
        let is_new = is_missing(&path);
        let file = if is_new { File::default() } else { config::read(&path)? };
        let named = |flag, path| if is_new { writable(flag, path) } else { absolute(path) };
        let origin = origin.map(|origin| named("--origin", origin)).transpose()?;
        let cache = cache.map(|cache| named("--cache", cache)).transpose()?;
        let named = Named { origin, cache, ..Named::default() };
        if file.is_plural()
            && let Some(flag) = named.of_one_volume()
        {
            let message = format!("{flag}: {} describes several volumes; say which with --volume", path.display());
            return Err(Failure::new(crate::USAGE, message));
        }
        Ok(Place { folder, path, file, named, is_new })
    }
}

pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |error| Failure::new(Failure::NO_INPUT, format!("{}: {error}; name it from / on", path.display()));
    let absolute = std::path::absolute(path).map_err(failed)?;
    // Without the `.` and double slashes that people type: it is printed, and written down.
    Ok(absolute.components().collect())
}
