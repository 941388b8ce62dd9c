# rl-training on the CPU, as a user without privileges. docs/containers.md says how to run it.
FROM python:3.11-slim

# More options for pip. On Linux the usual torch wheel brings gigabytes of CUDA; PyTorch's own index has CPU builds of
# the same version: --build-arg PIP_OPTIONS="--extra-index-url ADDRESS", with the address that PyTorch's page names.
ARG PIP_OPTIONS=""
# Extras to install, as in --build-arg EXTRAS="[atari,plot]".
ARG EXTRAS=""

COPY pyproject.toml constraints.txt hatch_build.py README.md /opt/rl-training/
COPY configs /opt/rl-training/configs
COPY src /opt/rl-training/src
RUN pip install --no-cache-dir $PIP_OPTIONS -c /opt/rl-training/constraints.txt "/opt/rl-training$EXTRAS"

RUN useradd --uid 10001 --create-home trainer && install -d -o trainer -g trainer /training
USER trainer
WORKDIR /training
ENTRYPOINT ["rl-training"]
CMD ["--help"]
