# The command line on a CPU, from this checkout: docker build -t offpcc . && docker run --rm offpcc zoo list
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY offpcc offpcc
COPY configs configs
COPY docs docs
COPY results/zoo results/zoo
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY requirements.txt /wheels/
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -r /wheels/requirements.txt /wheels/*.whl
WORKDIR /work
ENTRYPOINT ["offpcc"]
