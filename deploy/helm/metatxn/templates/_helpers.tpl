{{- define "metatxn.name" -}}
{{- printf "%s-metatxn" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "metatxn.selector" -}}
app.kubernetes.io/name: metatxn
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "metatxn.labels" -}}
{{ include "metatxn.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "metatxn.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "metatxn.scheme" -}}
{{ ternary "https" "http" (not (empty .Values.security.tlsSecret)) }}
{{- end -}}

{{- define "metatxn.podUrl" -}}
{{ include "metatxn.scheme" . }}://{{ ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") }}
{{- end -}}

{{- define "metatxn.named" -}}
{{ or (empty .Values.broker.storage) (not (empty .Values.security.tlsSecret)) (not (empty .Values.external.brokerUrl)) }}
{{- end -}}

{{- define "metatxn.authorities" -}}
{{- if .Values.security.ownAuthority }}
- {name: SSL_CERT_FILE, value: /etc/metatxn/tls/ca.crt}
- {name: SSL_CERT_DIR, value: /etc/ssl/certs}
{{- end }}
{{- end -}}

{{- define "metatxn.gatewayPorts" -}}
{{- range $name, $port := dict "kafka" .Values.broker.kafkaPort "pulsar" .Values.broker.pulsarPort }}
{{- if $port }}
- {name: {{ $name }}, port: {{ $port }}, targetPort: {{ $name }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "metatxn.checked" -}}
{{- if ne (empty .Values.external.coordinatorUrl) (empty .Values.external.brokerUrl) -}}
{{- fail "external: give both coordinatorUrl and brokerUrl" -}}
{{- end -}}
{{- if and .Values.external.loadBalancers (not .Values.external.brokerUrl) -}}
{{- fail "external: give coordinatorUrl and brokerUrl, which lead to the load balancers" -}}
{{- end -}}
{{- if and .Values.external.brokerUrl (not (contains "$(POD_NAME)" .Values.external.brokerUrl)) -}}
{{- fail "external.brokerUrl: each broker needs an address of its own, such as http://$(POD_NAME).example:8471" -}}
{{- end -}}
{{- if not (has .Values.ipFamily (list "IPv4" "IPv6")) -}}
{{- fail "ipFamily: say IPv4 or IPv6" -}}
{{- end -}}
{{- if not .Values.store -}}
{{- fail "store: give the URL of the metadata store, such as etcd://etcd.default:2379" -}}
{{- end -}}
{{- if and .Values.security.ownAuthority (not .Values.security.tlsSecret) -}}
{{- fail "security.ownAuthority: name the tlsSecret that has ca.crt" -}}
{{- end -}}
{{- if and (not .Values.security.tokenSecret) (not .Values.security.allowAnonymous) -}}
{{- fail "security: name a tokenSecret, or say allowAnonymous: true" -}}
{{- end -}}
{{- end -}}

{{- define "metatxn.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "metatxn.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "metatxn.commonArgs" -}}
- --store={{ .Values.store }}
- {{ printf "--host=%s" (ternary "::" "0.0.0.0" (eq .Values.ipFamily "IPv6")) | quote }}
- --log-level={{ .Values.logLevel }}
{{- if .Values.security.tokenSecret }}
- --token-file=/etc/metatxn/tokens/tokens.toml
{{- else }}
- --allow-anonymous
{{- end }}
{{- if .Values.security.tlsSecret }}
- --tls-cert=/etc/metatxn/tls/tls.crt
- --tls-key=/etc/metatxn/tls/tls.key
{{- end }}
{{- end -}}

{{- define "metatxn.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .Values.storeSecret }}
- {name: store, mountPath: /etc/metatxn/store, readOnly: true}
{{- end }}
{{- if .Values.security.tokenSecret }}
- {name: tokens, mountPath: /etc/metatxn/tokens, readOnly: true}
{{- end }}
{{- if .Values.security.tlsSecret }}
- {name: tls, mountPath: /etc/metatxn/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "metatxn.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if .Values.storeSecret }}
- {name: store, secret: {secretName: {{ .Values.storeSecret | quote }}}}
{{- end }}
{{- if .Values.security.tokenSecret }}
- {name: tokens, secret: {secretName: {{ .Values.security.tokenSecret | quote }}}}
{{- end }}
{{- if .Values.security.tlsSecret }}
- {name: tls, secret: {secretName: {{ .Values.security.tlsSecret | quote }}}}
{{- end }}
{{- end -}}

{{- define "metatxn.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ include "metatxn.scheme" . | upper }}}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: {{ include "metatxn.scheme" . | upper }}}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ include "metatxn.scheme" . | upper }}}
  periodSeconds: 5
  timeoutSeconds: 6
{{- end -}}

{{- define "metatxn.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "metatxn.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end -}}
