#!/usr/bin/env bash
# Builds a Debian package from built programs, without network: build.sh BINARIES OUTPUT. Needs dpkg-deb and objdump.
set -euo pipefail
binaries=$1 output=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
programs=(hoplite hoplite-store hoplite-directory)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 0755 "$root"

for program in "${programs[@]}"; do
  install -D -m 0755 "$binaries/$program" "$root/usr/bin/$program"
  strip --strip-unneeded "$root/usr/bin/$program"
done
for unit in store directory; do
  install -D -m 0644 "$source/deploy/systemd/hoplite-$unit.service" "$root/usr/lib/systemd/system/hoplite-$unit.service"
  install -D -m 0644 "$source/deploy/config/$unit.toml" "$root/etc/hoplite/$unit.toml"
done
install -D -m 0644 "$source/deploy/systemd/hoplite.sysusers" "$root/usr/lib/sysusers.d/hoplite.conf"
install -D -m 0644 "$source/deploy/systemd/hoplite.tmpfiles" "$root/usr/lib/tmpfiles.d/hoplite.conf"
install -D -m 0644 "$source/deploy/debian/profile.sh" "$root/etc/profile.d/hoplite.sh"
install -D -m 0644 "$source/deploy/debian/needrestart.conf" "$root/etc/needrestart/conf.d/hoplite.conf"
install -D -m 0644 "$source/deploy/monitoring/alerts.yml" "$root/usr/share/hoplite/alerts.yml"
install -D -m 0644 "$source/deploy/monitoring/dashboard.json" "$root/usr/share/hoplite/dashboard.json"
install -D -m 0644 "$source/deploy/debian/copyright" "$root/usr/share/doc/hoplite/copyright"
# All documents, in the directories that their links expect. Large pictures are left out.
(cd "$source" && find README.md CHANGELOG.md SECURITY.md docs -type f \
  \( -name '*.md' -o \( -name '*.png' -o -name '*.svg' \) -size -100k \) -print0) |
  while IFS= read -r -d '' file; do
    install -D -m 0644 "$source/$file" "$root/usr/share/doc/hoplite/$file"
  done
install -d -m 0755 "$root"/usr/share/{man/man1,bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$binaries/hoplite" man "$root/usr/share/man/man1"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
"$binaries/hoplite" completion bash >"$root/usr/share/bash-completion/completions/hoplite"
"$binaries/hoplite" completion zsh >"$root/usr/share/zsh/vendor-completions/_hoplite"
"$binaries/hoplite" completion fish >"$root/usr/share/fish/vendor_completions.d/hoplite.fish"

version=$("$binaries/hoplite" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
# The package depends on the version of the newest libc symbol in the programs.
libc=$(objdump -T "${programs[@]/#/$root/usr/bin/}" | grep -o 'GLIBC_2[0-9.]*' | sort -Vu | tail -n 1 | cut -d_ -f2)
install -d -m 0755 "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: hoplite
Version: $version
Architecture: $architecture
Maintainer: The Hoplite authors <hoplite@localhost>
Section: net
Priority: optional
Depends: libc6 (>= $libc), libgcc-s1
Recommends: systemd
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: distributed shared-memory object store with collective communication
 Workers of a node share objects by memory; stores move them between nodes, and
 reduce arrays in the network. This package has the node daemon, the directory
 daemon and the command line. Neither daemon is started by its installation,
 nor restarted by its upgrade.
CONTROL
(cd "$root" && find etc -type f | sed 's|^|/|' | sort) >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
  install -m 0755 "$source/deploy/debian/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

mkdir -p "$output"
package="$output/hoplite_${version}_$architecture.deb"
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
