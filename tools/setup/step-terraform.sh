# shellcheck shell=bash
# Terraform, pinned, as the shared library of a Python package; tools/setup/terraform.py makes a
# command line of it.
virtual_environment terraform
wrapper=$TOOLS/bin/terraform
# Beside the package: the checkout that called may be gone while another one still uses these tools.
cp "$SETUP/terraform.py" "$TOOLS/terraform/terraform.py"
cat >"$wrapper.new" <<EOF
#!/bin/sh
# exec: signals and kill reach the process that runs Terraform, as with the release binary.
exec "$TOOLS/terraform/bin/python" -I "$TOOLS/terraform/terraform.py" "\$@"
EOF
chmod +x "$wrapper.new"
mv "$wrapper.new" "$wrapper"
