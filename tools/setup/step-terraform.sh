# shellcheck shell=bash
# Terraform, pinned, as the shared library of a Python package; tools/setup/terraform.py makes a
# command line of it.
virtual_environment terraform
wrapper=$TOOLS/bin/terraform
cat >"$wrapper.new" <<EOF
#!/bin/sh
# exec: signals and kill reach the process that runs Terraform, as with the release binary.
exec "$TOOLS/terraform/bin/python" -I "$SETUP/terraform.py" "\$@"
EOF
chmod +x "$wrapper.new"
mv "$wrapper.new" "$wrapper"
