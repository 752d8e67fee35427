{{- define "kerf.image" -}}
{{- $i := .Values.image -}}
{{- if and $i.digest $i.tag }}
{{- fail "image.tag and image.digest are both set, and only one can count: add --set image.digest= for the tag, or --set image.tag= and the digest of the image that you want" }}
{{- end -}}
{{- if $i.digest }}{{ $i.repository }}@{{ $i.digest }}{{ else }}{{ $i.repository }}:{{ default .Chart.AppVersion $i.tag }}{{ end -}}
{{- end -}}

{{- define "kerf.labels" -}}
app.kubernetes.io/part-of: kerf
{{- end -}}

{{- define "kerf.metadata" -}}
name: {{ .name }}
namespace: kerf-system
labels: {app.kubernetes.io/part-of: kerf}
{{- end -}}

{{- define "kerf.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* How a service reaches NATS: {root, user}. */ -}}
{{- define "kerf.nats" -}}
{{- $v := .root.Values -}}
{{- if $v.nats.enabled }}
- {name: NATS_PASSWORD, valueFrom: {secretKeyRef: {name: kerf-nats, key: {{ .user }}}}}
- {name: KERF_NATS_URL, value: "tls://{{ .user }}:$(NATS_PASSWORD)@kerf-nats.kerf-system.svc:4222"}
- {name: KERF_NATS_CA, value: /etc/kerf/ca/ca.crt}
{{- else }}
- {name: KERF_NATS_URL, value: {{ required "nats.external.url is needed where nats.enabled is false" $v.nats.external.url | quote }}}
{{- if $v.nats.external.credentialsSecret }}
- {name: KERF_NATS_CREDENTIALS, value: /etc/kerf/nats/{{ .user }}.creds}
{{- end }}
{{- if $v.nats.external.privateCa }}
- {name: KERF_NATS_CA, value: /etc/kerf/ca/ca.crt}
{{- end }}
{{- end }}
- {name: KERF_NATS_INBOX_PREFIX, value: _INBOX_{{ .user }}}
{{- end -}}

{{- define "kerf.natsMounts" -}}
{{- if or .Values.nats.enabled .Values.nats.external.privateCa }}
- {name: ca, mountPath: /etc/kerf/ca, readOnly: true}
{{- end }}
{{- if and (not .Values.nats.enabled) .Values.nats.external.credentialsSecret }}
- {name: nats-credentials, mountPath: /etc/kerf/nats, readOnly: true}
{{- end }}
{{- end -}}

{{- /* {root, user}: of the Secret with all users' credentials a pod gets its own user's alone. */ -}}
{{- define "kerf.natsVolumes" -}}
{{- $nats := .root.Values.nats -}}
{{- if or $nats.enabled $nats.external.privateCa }}
- {name: ca, configMap: {name: kerf-ca}}
{{- end }}
{{- if and (not $nats.enabled) $nats.external.credentialsSecret }}
- name: nats-credentials
  secret: {secretName: {{ $nats.external.credentialsSecret }}, items: [{key: {{ .user }}.creds, path: {{ .user }}.creds}]}
{{- end }}
{{- end -}}

{{- /* What every service is told: {root, service}. Settings of values.yaml come last, as its own variables. */ -}}
{{- define "kerf.environment" -}}
- {name: KERF_HTTP_HOST, value: "*"}
- {name: KERF_HTTP_PORT, value: "8080"}
- {name: KERF_TRACE_RATIO, value: {{ .root.Values.tracing.ratio | quote }}}
{{- with .root.Values.tracing.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- $service := .service }}
{{- $fixed := .root.Files.Get "files/fixed-settings.yaml" | fromYaml }}
{{- range $name, $value := get .root.Values.settings .service }}
{{- with get (merge (dict) (get $fixed $service | default dict) $fixed.every) $name }}
{{- fail (printf "settings.%s.%s cannot be set: %s" $service $name .) }}
{{- end }}
- name: KERF_{{ upper $service }}_{{ upper $name }}
  value: {{ if kindIs "string" $value }}{{ $value | quote }}{{ else }}{{ toJson $value | quote }}{{ end }}
{{- end }}
{{- end -}}

{{- define "kerf.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: health}
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 2
{{- end -}}

{{- define "kerf.restricted" -}}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{- /* Replicas of this name go to different zones. Not by topologySpreadConstraints: kube-scheduler rates by these only nodes that
have the keys of all of them, so where nodes have no zone it would not spread over nodes either (podtopologyspread/scoring.go,
requireAllTopologies). */ -}}
{{- define "kerf.zones" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 100, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, labelSelector: {matchLabels: {app.kubernetes.io/name: {{ . }}}}}}
{{- end -}}

{{- /* The pod of a service of the control plane up to its containers: {root, name}. */ -}}
{{- define "kerf.pod" -}}
serviceAccountName: {{ .name }}
enableServiceLinks: false
priorityClassName: {{ .root.Values.controlPlane.priorityClassName }}
terminationGracePeriodSeconds: 30
securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
{{- include "kerf.pullSecrets" .root }}
{{- with .root.Values.controlPlane.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .root.Values.controlPlane.tolerations }}
tolerations:
{{- range . }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{ include "kerf.zones" .name }}
topologySpreadConstraints:
- {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/name: {{ .name }}}}}
{{- end -}}

{{- /* A Deployment of one service with two replicas or more and its disruption budget:
       {root, service, user (of NATS, or none), environment, mounts, volumes, ports} */ -}}
{{- define "kerf.deployment" -}}
{{- $name := printf "kerf-%s" .service -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "kerf.metadata" (dict "name" $name) | nindent 2 }}
spec:
  replicas: {{ .replicas | default $root.Values.controlPlane.replicas }}
  {{- if .recreate }}
  strategy: {type: Recreate}
  {{- else }}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  {{- end }}
  selector:
    matchLabels: {app.kubernetes.io/name: {{ $name }}}
  template:
    metadata:
      labels: {app.kubernetes.io/name: {{ $name }}, app.kubernetes.io/part-of: kerf}
    spec:
      {{- include "kerf.pod" (dict "root" $root "name" $name) | nindent 6 }}
      containers:
      - name: {{ .service }}
        image: {{ include "kerf.image" $root }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        command: [python, -m, services.{{ .service }}]
        env:
        {{- with .user }}
        {{- include "kerf.nats" (dict "root" $root "user" .) | trim | nindent 8 }}
        {{- end }}
        {{- with .environment }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- include "kerf.environment" (dict "root" $root "service" .service) | nindent 8 }}
        ports:
        - {name: health, containerPort: 8080}
        {{- with .ports }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- include "kerf.probes" $root | nindent 8 }}
        resources: {{ get $root.Values.resources .service | toJson }}
        {{- include "kerf.restricted" $root | nindent 8 }}
        {{- $natsMounts := ternary (include "kerf.natsMounts" $root) "" (not (empty .user)) }}
        {{- if or $natsMounts .mounts }}
        volumeMounts:
        {{- with trim $natsMounts }}{{ . | nindent 8 }}{{ end }}
        {{- with .mounts }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- end }}
      {{- $natsVolumes := ternary (include "kerf.natsVolumes" (dict "root" $root "user" .user)) "" (not (empty .user)) }}
      {{- if or $natsVolumes .volumes }}
      volumes:
      {{- with trim $natsVolumes }}{{ . | nindent 6 }}{{ end }}
      {{- with .volumes }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- end }}
{{- if not .recreate }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "kerf.metadata" (dict "name" $name) | nindent 2 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/name: {{ $name }}}
{{- end }}
{{- end -}}

{{- /* Kerf's image has a Python, another one need not have any program besides the server. What the server's monitoring port says
is for its own pod alone, so then only whether it takes connections is looked at. */ -}}
{{- define "kerf.natsProbe" }}
{{- if .Values.nats.image }}
tcpSocket: {port: client}
{{- else }}
exec:
  command:
  - python
  - -SE
  - -c
  - "import socket as k,sys;s=k.create_connection(('127.0.0.1',8222),2);s.sendall(b'GET /healthz?js-server-only=true HTTP/1.0\\r\\n\\r\\n');sys.exit(b' 200 ' not in s.recv(64))"
{{- end }}
{{- end }}

{{- /* A stream that could once not be written takes nothing more until its server starts again, not even when there is
room on the disk. The server then answers no write, and only this text of its health says so. It is looked for alone: servers
that have no leader, or are behind, must not be restarted for that. */ -}}
{{- define "kerf.natsLiveness" }}
{{- if .Values.nats.image }}
tcpSocket: {port: client}
{{- else }}
exec:
  command:
  - python
  - -SE
  - -c
  - |
    import socket, sys
    def get(path):
        with socket.create_connection(("127.0.0.1", 8222), 2) as server:
            server.sendall(b"GET " + path + b" HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: server.recv(65536), b""))
    if b" 200 " not in get(b"/healthz?js-enabled-only=true")[:64]:
        sys.exit("JetStream does not run")
    try:
        streams = get(b"/healthz?details=true")
    except OSError:
        sys.exit(0)  # it looks at every stream, which a slow disk may delay
    if b" write error: " in streams:
        sys.exit("a stream cannot be written; it takes a restart, and room on the disk")
{{- end }}
{{- end }}

{{- /* What completes requests in Kerf's own words: policy or webhook. */ -}}
{{- define "kerf.canonical" -}}
{{- if ne .Values.admission.canonical "auto" -}}
{{- .Values.admission.canonical -}}
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
policy
{{- else -}}
webhook
{{- end -}}
{{- end -}}
{{- /* Whether a container asks for GPUs in Kerf's own words, or the pod for Kerf's by its claims. */ -}}
{{- define "kerf.asks" -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,
  c.?resources.?limits.orValue({}).exists(k, k in ['kerf.dev/gpu', 'kerf.dev/gpu-memory', 'kerf.dev/gpu-compute', 'kerf.dev/gpu-memory-percent'] || k.startsWith('kerf.dev/mig-')))
|| (object.spec.?schedulerName.orValue('') == 'kerf' && size(object.spec.?resourceClaims.orValue([])) > 0)
{{- end -}}

{{- /* Whether a container names a number of GPUs and nothing else of them: its limits. */ -}}
{{- define "kerf.countAlone" -}}
[{{ include "kerf.quotaAmount" (dict "amount" (printf "%s[?'kerf.dev/gpu'].orValue('0')" .) "most" "65") }}].exists(n, n > 0 && n < 65)
  && !{{ . }}.exists(k, (k in ['kerf.dev/gpu-memory', 'kerf.dev/gpu-compute', 'kerf.dev/gpu-memory-percent'] || k.startsWith('kerf.dev/mig-'))
    && quantity(string({{ . }}[k])).compareTo(quantity('0')) != 0)
{{- end -}}
{{- /* What share of each GPU a container names: [GPUs, memory in bytes, percent of compute, percent of memory, MIG instances]: its limits. */ -}}
{{- define "kerf.asked" -}}
[
  [1, {{ include "kerf.quotaAmount" (dict "amount" (printf "%s[?'kerf.dev/gpu'].orValue('0')" .) "most" "64") }}].max(),
  {{ include "kerf.quotaAmount" (dict "amount" (printf "%s[?'kerf.dev/gpu-memory'].orValue('0')" .) "most" "70368744177664") }},
  {{ include "kerf.quotaAmount" (dict "amount" (printf "%s[?'kerf.dev/gpu-compute'].orValue('0')" .) "most" "6400") }},
  {{ include "kerf.quotaAmount" (dict "amount" (printf "%s[?'kerf.dev/gpu-memory-percent'].orValue('0')" .) "most" "6400") }},
  {{ . }}.exists(k, k.startsWith('kerf.dev/mig-') && quantity(string({{ . }}[k])).compareTo(quantity('0')) != 0) ? 1 : 0
]
{{- end -}}
