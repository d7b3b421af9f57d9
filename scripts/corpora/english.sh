#!/usr/bin/env bash
# English text of more than 250 MB for language models, from Debian's packages (bookworm).  usage: english.sh DIR
# Writes DIR/{train,dev,test}.txt: documentation, dictionaries, commentaries, descriptions of packages, and the literature of
# lm.sh. A line is a paragraph, and a blank line ends a document. DIR/SOURCES.tsv has the packages with versions, licences
# and bytes. Equal packages make equal files. About 1.2 GB are downloaded. Do not commit the result.
set -euo pipefail

# The packages, by the licence of most files of their source; DIR/SOURCES.tsv names the others.
packages=$(sed 's/^[^:]*: //' <<'END'
GPL: ada-reference-manual-2012 anarchism aptitude-doc-en autoconf-doc bash-doc bird2-doc buildbot-doc
GPL: c++-annotations-txt chrony clisp-doc coreutils dar-docs debian-faq debian-history debian-reference-en
GPL: denemo-doc developers-reference dict-gcide doc-debian dynare-doc exim4-doc-html exim4-doc-info fai-doc
GPL: fp-docs-3.2.2 freeradius-common frr-doc gap-doc git-doc git-man gitmagic grass-doc harden-doc icinga2-doc
GPL: installation-guide-amd64 lemonldap-ng-doc libreswan lilypond-doc-html lintian linux-doc-6.1 live-manual-html
GPL: mailman3-doc mailutils-doc maint-guide man-db manpages maxima-doc mercurial-common mh-book mplayer-doc nut-doc
GPL: octave-doc postgis-doc proftpd-doc r-doc-html r-doc-info rt5-doc-html slurm-wlm-doc solfege-doc util-linux
GPL: weechat-doc xen-doc zoneminder-doc
Apache: apache2-doc barbican-doc chezscheme-doc cinder-doc clang-19-doc derby-doc designate-doc docker-doc erlang-doc
Apache: glance-doc heat-doc ironic-doc keystone-doc libapache2-mod-perl2-doc libssl-doc llvm-19-doc manila-doc
Apache: neutron-doc nova-doc octavia-doc openvswitch-common openvswitch-doc ovn-doc python-openstackclient-doc
Apache: python-tornado-doc python-xarray-doc sahara-doc senlin-doc spamassassin swift-doc tomcat10-docs trove-doc
Apache: watcher-doc
BSD: borgbackup2-doc cmake-doc db5.3-doc fontforge-doc fortunes fortunes-min freebsd-manpages ganeti-doc mandoc
BSD: openafs-doc python-astropy-doc python-celery-doc python-django-doc python-ipython-doc python-pandas-doc
BSD: python-rdflib-doc python-scipy-doc python-scrapy-doc python-sklearn-doc python-sympy-doc sphinx-doc
BSD: swi-prolog-doc tcl8.6-doc tcllib varnish-doc
GPL and others: ghostscript-doc gnutls-doc guile-3.0-doc krb5-doc ppp rust-web-doc wesnoth-1.16-did wesnoth-1.16-dm
GPL and others: wesnoth-1.16-dw wesnoth-1.16-ei wesnoth-1.16-httt wesnoth-1.16-l wesnoth-1.16-low wesnoth-1.16-nr
GPL and others: wesnoth-1.16-sof wesnoth-1.16-sota wesnoth-1.16-sotbe wesnoth-1.16-thot wesnoth-1.16-trow wesnoth-1.16-tsg
GPL and others: wesnoth-1.16-utbs
public domain: abs-guide dict-devil dict-elements dict-jargon docutils-doc fortune-anarchism sbcl-doc sqlite3-doc
public domain: sword-comm-mhcc sword-comm-scofield sword-comm-tdavid sword-text-kjv sword-text-web
MIT: debmake-doc nim-doc nodejs-doc patroni-doc pyro4-doc python-peewee-doc python-pytest-doc python-sqlalchemy-doc
MIT: scons-doc snakemake-doc twisted-doc
its own: argyll-doc gnuplot-doc haskell98-report imagemagick-6-doc libcurl4-doc ntpsec-doc povray-doc smlnj-doc zsh-doc
GPL, Artistic: libanyevent-perl libcatalyst-manual-perl libdancer2-perl libdbi-perl libdbix-class-perl libmoose-perl
GPL, Artistic: libperl-critic-perl perl-doc
GFDL: csound-doc dict-foldoc gimp-help-en gnu-standards png-definitive-guide
LGPL: libvirt-doc racket-doc stilts-doc systemd
MPL: kea-doc libreoffice-help-en-us python-hypothesis-doc
CC-BY-SA: drbd-doc gnome-user-docs
GFDL, GPL, MIT: mit-scheme-doc systemtap-doc
GFDL, LGPL, GPL: binutils-doc shorewall-doc
GPL, BSD: debian-policy swig4.0-doc
LGPL, GPL: qtbase5-doc-html sox
LGPL, GPL, MPL: evolution-common pike8.0-doc
MIT, BSD: python3.11-doc xorg-docs
NGPL: nethack-common nethack-spoilers
Artistic: libmojolicious-perl
BSL: libboost1.74-doc
GFDL, CC-BY-SA: gnome-devel-docs
GFDL, GPL: mate-user-guide
GPL, Apache: rsyslog-doc
GPL, CC-BY-SA: debian-handbook
GPL, MIT, BSD: postfix-doc
GPL, man pages copyleft: manpages-dev
GPL, public domain: jargon-text
MPL, BSD: bind9-doc
PostgreSQL: postgresql-doc-15
Tcl: tk8.6-doc
Vim: vim-runtime
WordNet: dict-wn
END
)
# Also: the descriptions of all packages (GPL and MIT), and Shakespeare, Milton and Austen (public domain).
least=250000000

out=$(mkdir -p "${1:-english}" && cd "${1:-english}" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d); trap 'rm -rf "$tmp"' EXIT
chmod 755 "$tmp"; mkdir -p "$tmp/lists/partial" "$tmp/packages"
skipped=()

# Package lists of our own, with the descriptions in English: the system's may lack them.
cat > "$tmp/apt.conf" <<END
#clear Acquire::Languages;
Acquire::Languages { "en"; };
Dir::State::lists "$tmp/lists";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
APT::Sandbox::User "root";
END
get() { apt-get -c "$tmp/apt.conf" -qq "$@"; }
get update
list=$(ls "$tmp"/lists/*_main_i18n_Translation-en* | grep -v -E 'security|updates' | head -1) ||
  { echo "error: the package lists have no descriptions in English" >&2; exit 1; }
/usr/lib/apt/apt-helper cat-file "$list" > "$tmp/packages/Translation-en"

apt-cache -c "$tmp/apt.conf" pkgnames | sort > "$tmp/known"
for package in $packages; do
  if grep -qx -- "$package" "$tmp/known"; then echo "$package"; else skipped+=("$package"); fi
done > "$tmp/wanted"
cd "$tmp/packages"
mapfile -t wanted < "$tmp/wanted"
get download "${wanted[@]}" || true
for package in "${wanted[@]}"; do
  compgen -G "${package}_*.deb" > "$tmp/found" || get download "$package" || skipped+=("$package")
done

# Literature: the training part of lm.sh alone, so that its other parts stay unseen.
if bash "$here/lm.sh" "$tmp/lm" > "$tmp/lm.log" 2>&1; then
  cp "$tmp/lm/train.txt" "$tmp/packages/literature.txt"
else
  skipped+=("the literature of lm.sh")
fi

python3 "$here/english_text.py" extract "$tmp/packages" "$tmp/docs"
{ echo literature; echo $packages; echo Translation-en; } > "$tmp/order"
python3 "$here/english_text.py" join "$tmp/docs" "$tmp/text" "$tmp/order"

if [ ${#skipped[@]} -gt 0 ]; then
  printf 'skipped, not to be had here: %s\n' "${skipped[@]}" >&2
fi
total=$(cat "$tmp"/text/*.txt | wc -c)
if [ "$total" -lt "$least" ]; then
  echo "error: $total bytes of text, and $least are the least: too many packages were skipped" >&2
  exit 1
fi
mv "$tmp"/text/* "$out/"
