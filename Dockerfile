# Two images. `services` runs coordinators, brokers and the command line: without Java, not as root, and with nothing to
# write to but /data (the ledgers of a broker with local files) and /tmp. `spark` runs the Spark job of the demo.
#
#   docker build --target services -t metatxn:0.3.0 .
#   docker build --target spark -t metatxn-spark:0.3.0 .

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN python3 -m venv /opt/metatxn \
 && /opt/metatxn/bin/pip install --no-cache-dir '.[server,gateways,tracing]'

FROM python:3.11-slim-bookworm AS services
RUN useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin metatxn \
 && install --directory --owner=metatxn --group=metatxn /data
COPY --from=build /opt/metatxn /opt/metatxn
ENV PATH=/opt/metatxn/bin:$PATH
USER 10001
VOLUME /data
EXPOSE 8470 8471
CMD ["metatxn", "--help"]

FROM build AS build-spark
RUN /opt/metatxn/bin/pip install --no-cache-dir '.[demo]'

FROM python:3.11-slim-bookworm AS spark
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --home-dir /tmp --shell /usr/sbin/nologin metatxn
COPY --from=build-spark /opt/metatxn /opt/metatxn
COPY examples /opt/job/examples
WORKDIR /opt/job
ENV PATH=/opt/metatxn/bin:$PATH PYSPARK_PYTHON=python3 HOME=/tmp
USER 10001
CMD ["python3", "-m", "examples.flights.job", "--help"]
